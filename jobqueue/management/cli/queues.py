"""`pause`, `resume` and `limit`: executors do not claim tasks of a paused queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from jobqueue import api
from jobqueue.engine import Engine
from jobqueue.management.cli import arguments
from jobqueue.management.cli.backends import check_queue_names, find_engine
from jobqueue.management.cli.console import Console, log, shell_user
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import Queue
from jobqueue.operations.formatting import clock_time
from jobqueue.operations.queries import many


def add_queue_names(parser: CommandParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="name of a queue")


def add_queue_pause_arguments(parser: CommandParser) -> None:
    add_queue_names(parser)
    arguments.add_pause(parser)


def add_limit_arguments(parser: CommandParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of a queue")
    text = "a number, or none for no limit"
    parser.add_argument("max_running", type=arguments.parse_limit, metavar="MAX", help=text)


def pause(console: Console, flags: Any) -> None:
    """Pause queues: all, or none if one of the values is invalid."""
    engine = find_engine(flags.backend)
    check_queue_names(engine, flags.queues)
    by = shell_user() if flags.by is None else flags.by
    try:
        with transaction.atomic(using=engine.database):
            for name in flags.queues:
                api.pause(name, by=by, reason=flags.reason, until=flags.until, backend=engine.alias)
    except ValueError as error:
        raise CommandError(str(error)) from error
    for name in flags.queues:
        until = flags.until and str(flags.until)
        log("pause", flags.by, queue=name, backend=engine.alias, reason=flags.reason, until=until)
    _report(console, engine, flags.queues)


def resume(console: Console, flags: Any) -> None:
    engine = find_engine(flags.backend)
    check_queue_names(engine, flags.queues)
    paused = {row.name for row in _rows(engine, flags.queues) if row.is_paused_at(engine.db.now())}
    for name in flags.queues:
        if name not in paused:
            console.say(f"{name} was not paused.")
        api.resume(name, backend=engine.alias)
        log("resume", queue=name, backend=engine.alias)
    _report(console, engine, flags.queues)


def limit(console: Console, flags: Any) -> None:
    """Set the limit of a queue, or remove it."""
    engine = find_engine(flags.backend)
    check_queue_names(engine, [flags.queue])
    try:
        api.limit_queue(flags.queue, flags.max_running, backend=engine.alias)
    except ValueError as error:
        raise CommandError(str(error)) from error
    log("limit", queue=flags.queue, backend=engine.alias, max_running=flags.max_running or "none")
    _report(console, engine, [flags.queue])


def _rows(engine: Engine, names: Sequence[str]) -> list[Queue]:
    rows = {row.name: row for row in engine.db.queues.filter(name__in=names)}
    return [rows.get(name, Queue(name=name)) for name in dict.fromkeys(names)]


def _report(console: Console, engine: Engine, names: Sequence[str]) -> None:
    rows, now = _rows(engine, names), engine.db.now()
    if console.is_json:
        console.write_json({row.name: queue_as_json(row, now) for row in rows})
        return
    for row in rows:
        if row.is_paused_at(now):
            until = f" until {clock_time(row.resume_at)}" if row.resume_at else ""
            console.write(f"{row.name} is paused{until}. Running tasks continue.")
        else:
            limited = "" if row.max_running is None else f" with at most {many(row.max_running, 'task')} at once"
            console.write(f"{row.name} is active{limited}.")


def queue_as_json(row: Queue, now: datetime) -> dict[str, Any]:
    """Return the pause and the limit of a queue, for programs."""
    if not row.is_paused_at(now):
        row = Queue(max_running=row.max_running)
    names = ("paused_by", "pause_reason", "resume_at", "max_running")
    return {"is_paused": row.paused_at is not None, **{name: getattr(row, name) for name in names}}


VERBS = (
    Verb("pause", "Pause queues: executors claim no more of their tasks.", pause, add_queue_pause_arguments),
    Verb("resume", "Resume paused queues.", resume, add_queue_names),
    Verb("limit", "Limit how many tasks of a queue run at once across all executors.", limit, add_limit_arguments),
)
