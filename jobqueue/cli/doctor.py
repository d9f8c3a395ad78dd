"""`doctor`: checks that need the database. Each problem has an advice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any, cast

from django.core import checks
from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from jobqueue.checks import (
    check_actors,
    check_limits,
    check_schedules,
    check_task_names,
    check_time_zones,
    encoding_problems,
    messages_of_backends,
)
from jobqueue.cli.backends import engines
from jobqueue.cli.console import Console, first_line, many
from jobqueue.cli.limit_checks import limit_findings
from jobqueue.cli.postgres_checks import lock_findings, server_findings
from jobqueue.cli.schedule_checks import schedule_findings
from jobqueue.engine.clock import now_plus
from jobqueue.engine.engine import Engine
from jobqueue.engine.schema import missing_migrations
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.queries import of_status
from jobqueue.inspect.stats import BackendStats, ExecutorState, read_stats
from jobqueue.printable import printable
from jobqueue.records import FINAL, WAITING, Status

if TYPE_CHECKING:
    from jobqueue.engine.postgres.engine import PostgresEngine

LEVELS = {checks.INFO: "ok", checks.WARNING: "warning", checks.ERROR: "error"}
OVERDUE_SECONDS = 3600.0  # executors prune twice a minute
PAUSED_LONG = timedelta(days=1)


def doctor(console: Console, flags: Any) -> None:
    """Print what the checks found. Raises CommandError, exit code 1, if one is an error."""
    found = [*messages_of_backends(), *check_task_names(), *check_actors(), *check_limits()]
    found += [*check_schedules(), *check_time_zones()]
    found = found or [checks.Info("Settings: TASKS, tasks, actors and schedules pass the system checks.")]
    if not _has_error(found):
        found += [message for engine in engines(flags.backend) for message in _backend(engine)]
    lines = [
        {
            "level": LEVELS.get(message.level, "error"),
            "text": f"{message.id}: {message.msg}" if message.id else message.msg,
            "advice": message.hint or "",
        }
        for message in found
    ]
    if console.is_json:
        console.write_json(lines)
    else:
        _print(console, lines)
    if errors := [line for line in lines if line["level"] == "error"]:
        raise CommandError(f"{many(len(errors), 'error')} found.")


def _has_error(messages: Iterable[checks.CheckMessage]) -> bool:
    return any(message.level >= checks.ERROR for message in messages)


def _print(console: Console, found: Sequence[dict[str, str]]) -> None:
    width, indent = console.width or 120, " " * 9
    for one in found:
        text, advice = printable(f"{one['level']:<8} {one['text']}"), printable(one["advice"])
        for line in (
            *textwrap.wrap(text, width, subsequent_indent=indent),
            *textwrap.wrap(advice, width, initial_indent=indent, subsequent_indent=indent),
        ):
            console.write(line)


def _backend(engine: Engine) -> Iterator[checks.CheckMessage]:
    """Check one backend. A failed check ends those that depend on it."""
    here = f"Backend {engine.alias}"
    try:
        connections[engine.database].ensure_connection()
    except DatabaseError as error:
        text = f"{here}: database {engine.database!r} is unreachable: {first_line(error)}"
        yield checks.Error(text, hint=f"Start it, or correct DATABASES[{engine.database!r}].")
        return
    if refused := list(encoding_problems(engine.database)):
        yield from refused
        return
    if missing := missing_migrations(engine.database):
        text = f"{here}: migrations are not applied: {', '.join(missing)}."
        yield checks.Error(text, hint=f"manage.py migrate jobqueue --database {quote(engine.database)}")
        return
    yield checks.Info(f"{here}: database {engine.database!r} is reachable and migrated.")
    if connections[engine.database].vendor != "postgresql":
        stats = read_stats(engine)
    else:
        postgres = cast("PostgresEngine", engine)
        locks = list(lock_findings(postgres))
        yield from _prefixed(here, locks)
        if _has_error(locks):  # further queries could wait for these locks
            return
        stats = read_stats(engine)
        yield from _prefixed(here, server_findings(postgres, stats))
    yield from _retention(engine)
    yield from _queues(stats)
    yield from _executors(stats)
    yield from schedule_findings(engine, stats)
    yield from limit_findings(engine, stats)


def _prefixed(prefix: str, messages: Iterable[checks.CheckMessage]) -> Iterator[checks.CheckMessage]:
    for message in messages:
        message.msg = f"{prefix}: {message.msg}"
        yield message


def _retention(engine: Engine) -> Iterator[checks.CheckMessage]:
    here = f"Backend {engine.alias}"
    for status in FINAL:
        kept = engine.options.retention.get(status)
        prune = f"manage.py jobqueue prune --status {status} --older-than"
        if kept is None:
            text = f"{here}: {status} tasks are never pruned: RETENTION[{status!r}] is None."
            yield checks.Warning(text, hint=f"Set it, or run regularly: {prune} 30d")
        elif of_status(engine, status).filter(finished_at__lte=now_plus(-kept - OVERDUE_SECONDS))[:1].exists():
            text = f"{here}: {status} tasks are older than RETENTION allows: executors prune too slowly or do not run."
            yield checks.Warning(text, hint=f"Start an executor, or run: {prune} {kept:.0f}s")


def _queues(stats: BackendStats) -> Iterator[checks.CheckMessage]:
    is_starving = False
    for queue in stats.queues:
        ready, paused_at = queue.counts[Status.READY], queue.row.paused_at
        serve = f"manage.py run_executors --backend {quote(stats.backend)} --queue {quote(queue.name)}"
        if queue.is_paused and paused_at is not None:
            if stats.now - paused_at > PAUSED_LONG:
                text = f"Queue {queue.name}: paused for {duration(stats.now - paused_at)}; {ready} READY."
                yield checks.Warning(text, hint=f"manage.py jobqueue resume {quote(queue.name)}")
        elif ready and not queue.executors:
            is_starving = True
            waited = duration(queue.latency or 0.0)
            text = f"Queue {queue.name}: {ready} READY, a latency of {waited}, and no executor serves it."
            yield checks.Error(text, hint=serve)
        elif stats.alive and not queue.executors and any(queue.counts[status] for status in WAITING):
            later = " and ".join(f"{queue.counts[status]} {status}" for status in WAITING)
            text = f"Queue {queue.name}: {later}, and no executor will serve it when they are due."
            yield checks.Warning(text, hint=serve)
    if not is_starving:
        yield checks.Info(f"Backend {stats.backend}: every queue with READY tasks has executors or is paused.")


def _executors(stats: BackendStats) -> Iterator[checks.CheckMessage]:
    here = f"Backend {stats.backend}"
    silent = stats.in_state(ExecutorState.NOT_RESPONDING)
    for executor in (one for one in silent if one.busy):
        age = duration(executor.silent_seconds)
        yield checks.Error(
            f"Executor {executor.row.name} has sent no heartbeat for {age}, and still has "
            f"{many(executor.busy, 'task')}.",
            hint="Another executor rescues them: check that one is running. If this one's process exists, restart it.",
        )
    if idle := [executor.row.name for executor in silent if not executor.busy]:
        names = f"{', '.join(idle[:3])}{'…' if len(idle) > 3 else ''}"
        yield checks.Warning(
            f"{here}: {many(len(idle), 'executor')} died without shutting down in the last 24 h: {names}.",
            hint="Their tasks were rescued. Look for kills: out of memory, or too short a grace period.",
        )
    if stats.alive:
        yield checks.Info(f"{here}: {many(len(stats.alive), 'executor')} alive.")
    elif stats.in_state(ExecutorState.PAUSED):
        text = f"{here}: all executors are paused: they claim no tasks."
        yield checks.Warning(text, hint="manage.py jobqueue executors resume --all")
    else:
        yield checks.Warning(f"{here}: no executor is running.", hint="manage.py run_executors")
