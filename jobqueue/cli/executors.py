"""`executors`: who runs the queue; and tell them to be quiet, to go on or to stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from django.core.management.base import CommandError

from jobqueue import api
from jobqueue.cli.audit import note
from jobqueue.cli.backends import engines
from jobqueue.cli.console import Console
from jobqueue.cli.status import EXECUTORS, executor_as_json, executor_line
from jobqueue.cli.tables import many
from jobqueue.engine.base import Engine
from jobqueue.inspect.stats import ExecutorFigures, executors_of
from jobqueue.records import Command

LOOK_SECONDS = 0.1
DONE = {
    Command.QUIET: "is quiet: it claims nothing more and runs what it has",
    Command.RESUME: "is at work",
    Command.STOP: "is stopping",
}
UNHEARD = {
    Command.QUIET: "was told to be quiet, and has not answered yet",
    Command.RESUME: "was told to resume, and has not answered yet",
    Command.STOP: "was told to stop, and has not answered yet",
}


def show(console: Console, backend: str | None) -> None:
    """List the executors that have not stopped."""
    found = [executor for engine in engines(backend) for executor in _there(engine)]
    if console.is_json:
        console.write_json([executor_as_json(executor) for executor in found])
    elif found:
        console.table(EXECUTORS, [executor_line(executor) for executor in found])
    else:
        console.say("No executor is there: manage.py run_executors starts one.")


def tell(
    console: Console,
    command: Command,
    names: Sequence[str],
    backend: str | None,
    *,
    is_for_all: bool,
    wait_seconds: float,
) -> None:
    """Tell executors by name or id, and wait until they have heard. Raises CommandError where one has not."""
    if bool(names) == is_for_all:
        raise CommandError("Name executors, by their names or ids, or say --all; not both.")
    chosen = {engine: _choose(engine, names, is_for_all=is_for_all) for engine in engines(backend)}
    known = {word for rows in chosen.values() for row in rows for word in (row.row.name, str(row.row.pk))}
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"No executor is called {', '.join(map(repr, unknown))}: manage.py jobqueue executors.")
    for engine, rows in chosen.items():
        api.command([row.row.pk for row in rows], command, backend=engine.alias)
        for row in rows:
            note(command.lower(), executor=row.row.name, id=str(row.row.pk), backend=engine.alias)
    told = [(engine, row) for engine, rows in chosen.items() for row in rows]
    deaf = _wait_for(told, wait_seconds)
    if console.is_json:
        console.write_json([{"id": r.row.pk, "name": r.row.name, "heard": r.row.pk not in deaf} for _, r in told])
    else:
        for _, row in told:
            is_deaf = row.row.pk in deaf
            console.write(f"{row.row.name} {UNHEARD[command] if is_deaf else DONE[command]}.")
    if deaf:
        raise CommandError(f"{many(len(deaf), 'executor')} did not answer within {wait_seconds:g} s.")
    if not told:
        raise CommandError("No executor is there.")


def _there(engine: Engine) -> list[ExecutorFigures]:
    return [executor for executor in executors_of(engine, engine.now()) if executor.state != "stopped"]


def _choose(engine: Engine, names: Sequence[str], *, is_for_all: bool) -> list[ExecutorFigures]:
    """Choose by name or id; by name, and for all, only who is not lost: it would hear when it comes back."""
    there = _there(engine)
    if is_for_all:
        return [one for one in there if one.state != "lost"]
    by_id = [one for one in there if str(one.row.pk) in names]
    return by_id + [one for one in there if one.row.name in names and one.state != "lost" and one not in by_id]


def _wait_for(told: Sequence[tuple[Engine, ExecutorFigures]], seconds: float) -> set[UUID]:
    """Wait until executors have taken what they were told; gives those that have not."""
    deadline = time.monotonic() + seconds
    while True:
        deaf = {
            row.row.pk
            for engine, row in told
            if engine.executors.filter(pk=row.row.pk).exclude(command="").exclude(state="STOPPED").exists()
        }
        if not deaf or time.monotonic() >= deadline:
            return deaf
        time.sleep(LOOK_SECONDS)
