"""`doctor`: checks that need the database, each with what to do."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from shlex import quote

from django.core import checks
from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from jobqueue.checks import (
    check_actors,
    check_task_names,
    check_time_zones,
    encoding_problems,
    messages_of_backends,
)
from jobqueue.cli.backends import engines
from jobqueue.cli.console import Console, first_line
from jobqueue.cli.postgres_checks import lock_findings, server_findings
from jobqueue.cli.tables import many
from jobqueue.engine.base import Engine
from jobqueue.engine.clock import bound
from jobqueue.engine.schema import missing_migrations
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.queries import of_status
from jobqueue.inspect.stats import Figures, figures
from jobqueue.printable import printable
from jobqueue.records import FINAL, Status

OVERDUE_SECONDS = 3600.0  # executors prune twice a minute
LATER = (Status.SCHEDULED, Status.SUSPENDED)
PAUSED_LONG_SECONDS = 86_400.0


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """advice: what to do; empty where all is well."""

    level: Level
    said: str
    advice: str = ""


def doctor(console: Console, backend: str | None) -> None:
    """Look, and say what to do. Raises CommandError, exit code 1, where something is an error."""
    found = list(_settings())
    if not any(one.level is Level.ERROR for one in found):
        found += [finding for engine in engines(backend) for finding in _backend(engine)]
    if console.is_json:
        console.write_json([{"level": one.level, "said": one.said, "advice": one.advice} for one in found])
    else:
        _print(console, found)
    counts = Counter(one.level for one in found)
    if counts[Level.ERROR]:
        raise CommandError(f"{many(counts[Level.ERROR], 'error')} found.")


def _print(console: Console, found: Sequence[Finding]) -> None:
    width, indent = console.width or 120, " " * 9
    for one in found:
        lines = textwrap.wrap(printable(f"{one.level:<8} {one.said}"), width, subsequent_indent=indent)
        lines += textwrap.wrap(printable(one.advice), width, initial_indent=indent, subsequent_indent=indent)
        for line in lines:
            console.write(line)


def _settings() -> Iterator[Finding]:
    messages = [*messages_of_backends(), *check_task_names(), *check_actors(), *check_time_zones()]
    yield from _as_findings(messages)
    if not messages:
        yield Finding(Level.OK, "Settings: TASKS, tasks and actors pass the system checks.")


def _as_findings(messages: Iterable[checks.CheckMessage]) -> Iterator[Finding]:
    for message in messages:
        level = Level.ERROR if message.level >= checks.ERROR else Level.WARNING
        yield Finding(level, f"{message.id}: {message.msg}", message.hint or "")


def _backend(engine: Engine) -> Iterator[Finding]:
    """Check one backend; what stands on something that failed is not looked at."""
    here = f"Backend {engine.alias}"
    try:
        connections[engine.database].ensure_connection()
    except DatabaseError as error:
        yield Finding(
            Level.ERROR,
            f"{here}: database {engine.database!r} does not answer: {first_line(error)}",
            f"Start it, or correct DATABASES[{engine.database!r}].",
        )
        return
    if refused := list(_as_findings(encoding_problems(engine.database))):
        yield from refused
        return
    missing = missing_migrations(engine.database)
    if missing:
        yield Finding(
            Level.ERROR,
            f"{here}: migrations are not applied: {', '.join(missing)}.",
            f"manage.py migrate jobqueue --database {quote(engine.database)}",
        )
        return
    yield Finding(Level.OK, f"{here}: database {engine.database!r} answers, tables are migrated.")
    locks = [Finding(Level(level), f"{here}: {said}", advice) for level, said, advice in lock_findings(engine)]
    yield from locks
    if any(one.level is Level.ERROR for one in locks):  # further queries might wait for these locks
        return
    now = figures(engine)
    yield from (
        Finding(Level(level), f"{here}: {said}", advice) for level, said, advice in server_findings(engine, now)
    )
    yield from _retention(engine)
    yield from _queues(now)
    yield from _executors(now)


def _retention(engine: Engine) -> Iterator[Finding]:
    here = f"Backend {engine.alias}"
    for status in FINAL:
        kept = engine.options.retention.get(status)
        if kept is None:
            yield Finding(
                Level.WARNING,
                f"{here}: {status} tasks are kept for ever: RETENTION[{status!r}] is None.",
                f"Set it, or run manage.py jobqueue purge --status {status} --older-than 30d by a timer.",
            )
        elif of_status(engine, status).filter(finished_at__lte=bound(-kept - OVERDUE_SECONDS))[:1].exists():
            yield Finding(
                Level.WARNING,
                f"{here}: {status} tasks are older than RETENTION says: executors do not keep up, or none ran.",
                f"Run one, or manage.py jobqueue purge --status {status} --older-than {kept:.0f}s",
            )


def _queues(now: Figures) -> Iterator[Finding]:
    starving = False
    for queue in now.queues:
        ready, row = queue.counts[Status.READY], queue.row
        waited = duration(timedelta(seconds=queue.latency or 0.0))
        if queue.is_paused and row is not None and row.paused_at is not None:
            since = now.now - row.paused_at
            if since.total_seconds() > PAUSED_LONG_SECONDS:
                yield Finding(
                    Level.WARNING,
                    f"Queue {queue.name}: paused for {duration(since)}; {ready} READY.",
                    f"manage.py jobqueue resume {quote(queue.name)}",
                )
        elif ready.number and not queue.serving:
            starving = True
            yield Finding(
                Level.ERROR,
                f"Queue {queue.name}: {ready} READY, the oldest for {waited}, and no executor serves it.",
                f"manage.py run_executors --backend {quote(now.backend)} --queue {quote(queue.name)}",
            )
        elif now.serving and not queue.serving and any(queue.counts[one].number for one in LATER):
            later = " and ".join(f"{queue.counts[one]} {one}" for one in LATER)
            yield Finding(
                Level.WARNING,
                f"Queue {queue.name}: {later}, and no executor serves it for when they are due.",
                f"manage.py run_executors --backend {quote(now.backend)} --queue {quote(queue.name)}",
            )
    if not starving:
        yield Finding(Level.OK, f"Backend {now.backend}: every queue with READY tasks is served, or paused.")


def _executors(now: Figures) -> Iterator[Finding]:
    lost = [executor for executor in now.executors if executor.state == "lost"]
    for executor in (one for one in lost if one.busy):
        yield Finding(
            Level.ERROR,
            f"Executor {executor.row.name}: silent for {duration(timedelta(seconds=executor.silent_seconds))}, "
            f"and still holds {many(executor.busy, 'task')}.",
            "A living executor takes them over: see whether one runs. If this one's process still lives, restart it.",
        )
    idle = [executor for executor in lost if not executor.busy]
    if idle:
        yield Finding(
            Level.WARNING,
            f"Backend {now.backend}: {many(len(idle), 'executor')} vanished within a day without saying so: "
            f"{', '.join(executor.row.name for executor in idle[:3])}{'…' if len(idle) > 3 else ''}.",
            "Their tasks were taken over. Look for kills: out of memory, or a grace period that is too short.",
        )
    if now.serving:
        yield Finding(Level.OK, f"Backend {now.backend}: {many(len(now.serving), 'executor')} alive.")
    elif now.has_quiet:
        said = f"Backend {now.backend}: executors are quiet, none claims anything."
        yield Finding(Level.WARNING, said, "manage.py jobqueue executors resume --all")
    else:
        yield Finding(Level.WARNING, f"Backend {now.backend}: no executor is alive.", "manage.py run_executors")
