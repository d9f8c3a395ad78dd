"""`tail`: tasks as they end."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from jobqueue.engine import Engine
from jobqueue.management.cli import arguments
from jobqueue.management.cli.backends import engines, report_unknown
from jobqueue.management.cli.console import Console
from jobqueue.management.cli.task_filters import add_filters, moment_text, read_filters
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import (
    attempt_number,
    attempts_text,
    clock_time,
    duration,
    headline,
    local,
    short_type,
    time_run,
)
from jobqueue.operations.list.selection import Selection
from jobqueue.operations.payloads import find_secrets, parse_column, raw, row_annotations
from jobqueue.values.redaction import redact_text
from jobqueue.values.states import FINAL, Status

LATE = timedelta(seconds=10)  # finished_at precedes the commit: a row may become visible this much later
MAX_LINES = 500  # per query
COLUMNS = (
    "task_type", "queue_name", "status", "attempts", "max_attempts", "polls", "finished_at", "last_attempted_at",
    "backend",
)  # fmt: skip

Ended = tuple[datetime, UUID, Engine]


def add_arguments(parser: CommandParser) -> None:
    follow = "show further tasks as they end, until Ctrl-C"
    parser.add_argument("-f", "--follow", action="store_true", help=follow)
    lines = "number of tasks at first (10)"
    parser.add_argument("-n", "--lines", type=arguments.within(0, MAX_LINES), default=10, help=lines)
    interval = "time between two queries (1s)"
    parser.add_argument("--interval", type=arguments.parse_duration, default="1s", metavar="TIME", help=interval)
    add_filters(parser, FINAL)


def tail(console: Console, flags: Any) -> None:
    """Show the last tasks that ended; with --follow also those that end later, until Ctrl-C."""
    backends = engines(flags.backend)
    started = {engine: engine.db.now() for engine in backends}
    try:
        printed = _ended(flags, dict.fromkeys(started), flags.lines)[-flags.lines :] if flags.lines else []
        databases = {engine.database for engine in backends}
        report_unknown(console, databases, flags.queue, flags.task, has_rows=bool(printed), is_fatal=not flags.follow)
        _print(console, printed)
        while flags.follow:
            time.sleep(flags.interval.total_seconds())
            since = {engine: max(engine.db.now() - LATE, started[engine]) for engine in backends}
            ended = _ended(flags, since, MAX_LINES)
            new = [task for task in ended if task not in printed]
            _print(console, new)
            if len(new) >= MAX_LINES:
                console.say("… and more that are not shown.")
            printed = ended
    except KeyboardInterrupt:
        return


def _ended(flags: Any, since: Mapping[Engine, datetime | None], limit: int) -> list[Ended]:
    """Return the tasks that ended last. Those of a queue or a task are searched in the window of the admin's list."""
    ended: list[Ended] = []
    for engine, start in since.items():
        filters = read_filters(flags, engine.database, backend=engine.alias)
        filters |= {"ended_since": moment_text(engine, start)} if start else {}
        for status in dict.fromkeys(flags.status or FINAL):
            is_whole = not (flags.queue or flags.task)
            selection = Selection(engine.database, {**filters, "status": str(status)}, is_whole=is_whole)
            rows = selection.rows.values_list("finished_at", "pk")[:limit]
            ended += [(at, pk, engine) for at, pk in rows if at is not None]
    return sorted(ended, key=lambda task: task[:2])


def _print(console: Console, ended: Sequence[Ended]) -> None:
    for task in _read(ended):
        if console.is_json:
            console.write_json(_as_json(task), indent=None)
        else:
            for line in _lines(task, console.width):
                console.write(line)
    console.out.flush()


def _read(ended: Collection[Ended]) -> Iterator[Task]:
    """Read rows in their order, without those that were pruned or requeued since."""
    rows: dict[UUID, Task] = {}
    values = {**row_annotations(), "args_text": raw("args"), "kwargs_text": raw("kwargs")}
    for engine in {engine for *_, engine in ended}:
        mine = engine.db.by_ids([pk for _, pk, its_engine in ended if its_engine is engine])
        rows |= {row.pk: row for row in mine.only(*COLUMNS).annotate(**values) if row.finished_at is not None}
    return (rows[pk] for _, pk, _ in ended if pk in rows)


def _lines(task: Any, width: int | None) -> Iterator[str]:
    """Yield one long line for `grep`, or lines that fit a terminal."""
    error = " ".join(_error(task).split())
    attempt = attempts_text(task)
    length = time_run(task)
    took = "" if length is None else duration(length).replace(" ", "")
    names = [f"{task.status:<10}", str(task.pk)]
    if width is None:
        parts = [clock_time(task.finished_at), *names]
        fields = (task.task_type, f"queue={task.queue_name}", attempt and f"attempt {attempt}", took, error)
        yield " ".join([*parts, *filter(None, fields)])
        return
    parts = [f"{local(task.finished_at):%H:%M:%S}", *names]
    for line in (" ".join([*parts, f"{attempt:>6}", f"{took:>5}", short_type(task.task_type)]), f"{'':20}{error}"):
        if line.strip():
            yield line if len(line) <= width else f"{line[: width - 1]}…"


def _error(task: Any) -> str:
    if task.status != Status.FAILED:
        return ""
    patterns = options_of(task.backend).redact
    secrets = find_secrets(task.task_type, parse_column(task.args_text), parse_column(task.kwargs_text), patterns)
    return headline(task.error_class, redact_text(str(task.error_message or ""), patterns, secrets))


def _as_json(task: Any) -> dict[str, Any]:
    return {
        "finished_at": task.finished_at,
        "status": task.status,
        "id": task.pk,
        "task": task.task_type,
        "backend": task.backend,
        "queue": task.queue_name,
        "attempt": attempt_number(task),
        "max_attempts": task.max_attempts,
        "error": _error(task) or None,
    }


VERB = Verb("tail", "Show the last tasks that ended.", tail, add_arguments)
