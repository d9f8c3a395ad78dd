"""`executors`: list executors, or send them a command and wait for the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.core.management.base import CommandError

from jobqueue import api
from jobqueue.cli.audit import log
from jobqueue.cli.backends import engines
from jobqueue.cli.console import Console, UsageError
from jobqueue.cli.status import EXECUTORS, executor_as_json, executor_line
from jobqueue.cli.tables import many
from jobqueue.engine.engine import Engine
from jobqueue.inspect.stats import ExecutorState, ExecutorStats, read_executors
from jobqueue.records import Command

POLL_SECONDS = 0.1
DONE = {
    Command.PAUSE: "{} is paused. It claims no tasks; running tasks continue.",
    Command.RESUME: "{} claims tasks again.",
    Command.STOP: "{} is stopping.",
}


def executors(
    console: Console,
    *,
    backend: str | None,
    command: Command | None,
    names: Sequence[str],
    all: bool,  # noqa: A002 - the flag's name
    wait: timedelta,
) -> None:
    """List executors. With a command, send it. Raises CommandError if an executor does not answer in time."""
    if command is None:
        _show(console, [executor for engine in engines(backend) for executor in _running(engine)])
        return
    if bool(names) == all:
        raise UsageError("Pass either names or ids of executors, or --all.")
    chosen = {engine: _choose(engine, names, is_for_all=all) for engine in engines(backend)}
    known = {name for found in chosen.values() for one in found for name in (one.row.name, str(one.row.pk))}
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"No executor named {', '.join(map(repr, unknown))}. See: manage.py jobqueue executors")
    for engine, found in chosen.items():
        api.command([one.row.pk for one in found], command, backend=engine.alias)
        for one in found:
            log(command.lower(), executor=one.row.name, id=str(one.row.pk), backend=engine.alias)
    asked = [(engine, one) for engine, found in chosen.items() for one in found]
    silent = _wait_for(asked, wait.total_seconds())
    if console.is_json:
        fields = [{"id": one.row.pk, "name": one.row.name, "answered": one.row.pk not in silent} for _, one in asked]
        console.write_json(fields)
    else:
        for _, one in asked:
            no_answer = f"{{}} has not answered the command {command.lower()} yet."
            console.write((no_answer if one.row.pk in silent else DONE[command]).format(one.row.name))
    if silent:
        raise CommandError(f"{many(len(silent), 'executor')} did not answer within {wait.total_seconds():g} s.")
    if not asked:
        raise CommandError("No executor is running.")


def _show(console: Console, found: Sequence[ExecutorStats]) -> None:
    if console.is_json:
        console.write_json([executor_as_json(executor) for executor in found])
    elif found:
        console.table(EXECUTORS, [executor_line(executor) for executor in found])
    else:
        console.say("No executor is running. Run: manage.py run_executors")


def _running(engine: Engine) -> list[ExecutorStats]:
    found = read_executors(engine, engine.now())
    return [executor for executor in found if executor.state != ExecutorState.STOPPED]


def _choose(engine: Engine, names: Sequence[str], *, is_for_all: bool) -> list[ExecutorStats]:
    """Choose executors. One that does not respond is chosen by id only: it obeys when it comes back."""
    running = _running(engine)
    responding = [one for one in running if one.state != ExecutorState.NOT_RESPONDING]
    if is_for_all:
        return responding
    by_id = [one for one in running if str(one.row.pk) in names]
    return by_id + [one for one in responding if one.row.name in names and one not in by_id]


def _wait_for(asked: Sequence[tuple[Engine, ExecutorStats]], seconds: float) -> set[UUID]:
    """Wait until executors have taken their commands. Return the ids of those that have not."""
    deadline = time.monotonic() + seconds
    while True:
        silent = {
            one.row.pk
            for engine, one in asked
            if engine.executors.filter(pk=one.row.pk).exclude(command="").exclude(state="STOPPED").exists()
        }
        if not silent or time.monotonic() >= deadline:
            return silent
        time.sleep(POLL_SECONDS)
