"""`doctor`: checks that need the database. Each finding has an advice."""

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
from jobqueue.engine.clock import now_plus
from jobqueue.engine.engine import Engine
from jobqueue.engine.schema import missing_migrations
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.queries import of_status
from jobqueue.inspect.stats import BackendStats, ExecutorState, read_stats
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
    """advice: what to do; empty if all is well."""

    level: Level
    text: str
    advice: str = ""


def doctor(console: Console, *, backend: str | None) -> None:
    """Print the findings. Raises CommandError, exit code 1, if one is an error."""
    found = list(_settings())
    if not any(one.level is Level.ERROR for one in found):
        found += [finding for engine in engines(backend) for finding in _backend(engine)]
    if console.is_json:
        console.write_json([{"level": one.level, "text": one.text, "advice": one.advice} for one in found])
    else:
        _print(console, found)
    counts = Counter(one.level for one in found)
    if counts[Level.ERROR]:
        raise CommandError(f"{many(counts[Level.ERROR], 'error')} found.")


def _print(console: Console, found: Sequence[Finding]) -> None:
    width, indent = console.width or 120, " " * 9
    for one in found:
        lines = textwrap.wrap(printable(f"{one.level:<8} {one.text}"), width, subsequent_indent=indent)
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
    """Check one backend. A failed check ends those that depend on it."""
    here = f"Backend {engine.alias}"
    try:
        connections[engine.database].ensure_connection()
    except DatabaseError as error:
        yield Finding(
            Level.ERROR,
            f"{here}: database {engine.database!r} is unreachable: {first_line(error)}",
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
    yield Finding(Level.OK, f"{here}: database {engine.database!r} is reachable and migrated.")
    locks = [Finding(Level(level), f"{here}: {text}", advice) for level, text, advice in lock_findings(engine)]
    yield from locks
    if any(one.level is Level.ERROR for one in locks):  # further queries could wait for these locks
        return
    stats = read_stats(engine)
    yield from (
        Finding(Level(level), f"{here}: {text}", advice) for level, text, advice in server_findings(engine, stats)
    )
    yield from _retention(engine)
    yield from _queues(stats)
    yield from _executors(stats)


def _retention(engine: Engine) -> Iterator[Finding]:
    here = f"Backend {engine.alias}"
    for status in FINAL:
        kept = engine.options.retention.get(status)
        if kept is None:
            yield Finding(
                Level.WARNING,
                f"{here}: {status} tasks are never pruned: RETENTION[{status!r}] is None.",
                f"Set it, or run regularly: manage.py jobqueue prune --status {status} --older-than 30d",
            )
        elif of_status(engine, status).filter(finished_at__lte=now_plus(-kept - OVERDUE_SECONDS))[:1].exists():
            yield Finding(
                Level.WARNING,
                f"{here}: {status} tasks are older than RETENTION allows: executors prune too slowly or do not run.",
                f"Start an executor, or run: manage.py jobqueue prune --status {status} --older-than {kept:.0f}s",
            )


def _queues(stats: BackendStats) -> Iterator[Finding]:
    is_starving = False
    for queue in stats.queues:
        ready, row = queue.counts[Status.READY], queue.row
        waited = duration(timedelta(seconds=queue.latency or 0.0))
        if queue.is_paused and row is not None and row.paused_at is not None:
            since = stats.now - row.paused_at
            if since.total_seconds() > PAUSED_LONG_SECONDS:
                yield Finding(
                    Level.WARNING,
                    f"Queue {queue.name}: paused for {duration(since)}; {ready} READY.",
                    f"manage.py jobqueue resume {quote(queue.name)}",
                )
        elif ready.number and not queue.executors:
            is_starving = True
            yield Finding(
                Level.ERROR,
                f"Queue {queue.name}: {ready} READY, a latency of {waited}, and no executor serves it.",
                f"manage.py run_executors --backend {quote(stats.backend)} --queue {quote(queue.name)}",
            )
        elif stats.alive and not queue.executors and any(queue.counts[one].number for one in LATER):
            later = " and ".join(f"{queue.counts[one]} {one}" for one in LATER)
            yield Finding(
                Level.WARNING,
                f"Queue {queue.name}: {later}, and no executor will serve it when they are due.",
                f"manage.py run_executors --backend {quote(stats.backend)} --queue {quote(queue.name)}",
            )
    if not is_starving:
        yield Finding(Level.OK, f"Backend {stats.backend}: every queue with READY tasks has executors or is paused.")


def _executors(stats: BackendStats) -> Iterator[Finding]:
    silent = stats.in_state(ExecutorState.NOT_RESPONDING)
    for executor in (one for one in silent if one.busy):
        yield Finding(
            Level.ERROR,
            f"Executor {executor.row.name} has sent no heartbeat for "
            f"{duration(timedelta(seconds=executor.silent_seconds))}, and still has {many(executor.busy, 'task')}.",
            "Another executor rescues them: check that one is running. If this one's process exists, restart it.",
        )
    idle = [executor for executor in silent if not executor.busy]
    if idle:
        yield Finding(
            Level.WARNING,
            f"Backend {stats.backend}: {many(len(idle), 'executor')} died without shutting down in the last 24 h: "
            f"{', '.join(executor.row.name for executor in idle[:3])}{'…' if len(idle) > 3 else ''}.",
            "Their tasks were rescued. Look for kills: out of memory, or too short a grace period.",
        )
    if stats.alive:
        yield Finding(Level.OK, f"Backend {stats.backend}: {many(len(stats.alive), 'executor')} alive.")
    elif stats.in_state(ExecutorState.PAUSED):
        text = f"Backend {stats.backend}: all executors are paused: they claim no tasks."
        yield Finding(Level.WARNING, text, "manage.py jobqueue executors resume --all")
    else:
        yield Finding(Level.WARNING, f"Backend {stats.backend}: no executor is running.", "manage.py run_executors")
