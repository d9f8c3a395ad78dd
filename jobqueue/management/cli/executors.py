"""`executors`: list executors, or send them a command and wait for the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from jobqueue import api
from jobqueue.engine import Engine
from jobqueue.management.cli.arguments import parse_duration
from jobqueue.management.cli.backends import engines
from jobqueue.management.cli.console import Console, log
from jobqueue.management.cli.status import executor_as_json, show_executors
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import Executor
from jobqueue.operations.executors import ExecutorState, ExecutorStats, read_executors
from jobqueue.operations.queries import many
from jobqueue.values.states import Command

POLL_SECONDS = 0.1
DONE = {
    Command.PAUSE: "is paused. It claims no tasks; running tasks continue.",
    Command.RESUME: "claims tasks again.",
    Command.STOP: "is stopping.",
}


def add_arguments(parser: CommandParser) -> None:
    commands = [command.lower() for command in Command]
    text = "claim no tasks; claim tasks again; finish running tasks and exit. Without a command: list executors"
    parser.add_argument("command", nargs="?", type=str.lower, choices=commands, metavar="|".join(commands), help=text)
    parser.add_argument("names", nargs="*", metavar="NAME", help="name or id of an executor")
    parser.add_argument("--all", action="store_true", help="all responding executors, on every host")
    wait = "how long to wait for answers (10s)"
    parser.add_argument("--wait", type=parse_duration, default="10s", metavar="TIME", help=wait)


def executors(console: Console, flags: Any) -> None:
    """List executors. With a command, send it. Raises CommandError if an executor does not answer in time."""
    running = [
        (engine, executor)
        for engine in engines(flags.backend)
        for executor in read_executors(engine, engine.db.now())
        if executor.state != ExecutorState.STOPPED
    ]
    if flags.command is None:
        _show(console, [executor for _, executor in running])
        return
    if bool(flags.names) == flags.all:
        flags.parser.error("Pass either names or ids of executors, or --all.")
    asked = [(engine, stats.row) for engine, stats in running if _is_chosen(stats, flags.names)]
    if unknown := set(flags.names) - {name for _, row in asked for name in (row.name, str(row.pk))}:
        names = ", ".join(map(repr, sorted(unknown)))
        raise CommandError(f"No executor named {names}. See: manage.py jobqueue executors")
    command = Command(flags.command.upper())
    for engine, row in asked:
        api.command([row.pk], command, backend=engine.alias)
        log(flags.command, executor=row.name, id=str(row.pk), backend=engine.alias)
    silent = _wait_for(asked, flags.wait.total_seconds())
    if console.is_json:
        console.write_json([{"id": row.pk, "name": row.name, "answered": row.pk not in silent} for _, row in asked])
    else:
        no_answer = f"has not answered the command {flags.command} yet."
        for _, row in asked:
            console.write(f"{row.name} {no_answer if row.pk in silent else DONE[command]}")
    if silent:
        raise CommandError(f"{many(len(silent), 'executor')} did not answer within {flags.wait.total_seconds():g} s.")
    if not asked:
        raise CommandError("No executor is running.")


def _show(console: Console, executors: Sequence[ExecutorStats]) -> None:
    if console.is_json:
        console.write_json([executor_as_json(executor) for executor in executors])
    elif executors:
        show_executors(console, executors)
    else:
        console.say("No executor is running. Run: manage.py run_executors")


def _is_chosen(executor: ExecutorStats, names: Sequence[str]) -> bool:
    """Return whether a command is for an executor: for all, by name, or by id."""
    if executor.state == ExecutorState.NOT_RESPONDING:  # by id only: it obeys when it comes back
        return str(executor.row.pk) in names
    return not names or bool({executor.row.name, str(executor.row.pk)} & set(names))


def _wait_for(asked: Sequence[tuple[Engine, Executor]], seconds: float) -> set[UUID]:
    """Wait until executors have taken their commands. Return the ids of those that have not."""
    deadline = time.monotonic() + seconds
    while True:
        silent = {
            row.pk
            for engine, row in asked
            if engine.db.executors.filter(pk=row.pk)
            .exclude(command="")
            .exclude(heartbeat__state=Executor.State.STOPPED)
            .exists()
        }
        if not silent or time.monotonic() >= deadline:
            return silent
        time.sleep(POLL_SECONDS)


VERB = Verb("executors", "List executors, or send them a command.", executors, add_arguments)
