"""`pause`, `resume` and `limit`: executors do not claim tasks of a paused queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError

from jobqueue import api
from jobqueue.cli.audit import log, shell_user
from jobqueue.cli.backends import check_queue_name, engine_of
from jobqueue.cli.console import Console
from jobqueue.cli.tables import many
from jobqueue.engine.engine import Engine
from jobqueue.models import Queue


def pause(
    console: Console,
    *,
    queues: Sequence[str],
    backend: str | None,
    by: str | None,
    reason: str,
    until: timedelta | datetime | None,
) -> None:
    """Pause queues. All names are checked before the first queue is paused."""
    engine = _engine_for(queues, backend)
    for name in queues:
        try:
            api.pause(name, by=shell_user() if by is None else by, reason=reason, until=until, backend=engine.alias)
        except ValueError as error:
            raise CommandError(str(error)) from error
        log("pause", by, queue=name, backend=engine.alias, reason=reason, until=until and str(until))
    _report(console, engine, queues)


def resume(console: Console, *, queues: Sequence[str], backend: str | None) -> None:
    engine = _engine_for(queues, backend)
    paused = {row.name for row in _rows(engine, queues) if row.is_paused_at(engine.now())}
    for name in queues:
        if name not in paused:
            console.say(f"{name} was not paused.")
        api.resume(name, backend=engine.alias)
        log("resume", queue=name, backend=engine.alias)
    _report(console, engine, queues)


def limit(console: Console, *, queue: str, max_running: int | None, backend: str | None) -> None:
    """Set the concurrency limit of a queue, or remove it."""
    engine = _engine_for([queue], backend)
    try:
        api.limit(queue, max_running, backend=engine.alias)
    except ValueError as error:
        raise CommandError(str(error)) from error
    log("limit", queue=queue, backend=engine.alias, max_running="none" if max_running is None else max_running)
    _report(console, engine, [queue])


def _engine_for(names: Sequence[str], backend: str | None) -> Engine:
    engine = engine_of(backend)
    for name in names:
        check_queue_name(engine, name)
    return engine


def _rows(engine: Engine, names: Sequence[str]) -> list[Queue]:
    rows = {row.name: row for row in engine.queues.filter(name__in=names)}
    return [rows.get(name, Queue(name=name)) for name in dict.fromkeys(names)]


def _report(console: Console, engine: Engine, names: Sequence[str]) -> None:
    rows, now = _rows(engine, names), engine.now()
    if console.is_json:
        console.write_json({row.name: as_json(row, now) for row in rows})
        return
    for row in rows:
        limited = "" if row.max_running is None else f" with at most {many(row.max_running, 'task')} at once"
        if row.is_paused_at(now):
            until = f" until {row.resume_at:%Y-%m-%d %H:%M:%S %Z}" if row.resume_at else ""
            console.write(f"{row.name} is paused{until}. Running tasks continue.")
        else:
            console.write(f"{row.name} is active{limited}.")


def as_json(row: Queue, now: datetime) -> dict[str, Any]:
    """Return the pause and the limit of a queue, for programs."""
    is_paused = row.is_paused_at(now)
    return {
        "is_paused": is_paused,
        "paused_by": row.paused_by if is_paused else "",
        "pause_reason": row.pause_reason if is_paused else "",
        "resume_at": row.resume_at if is_paused else None,
        "max_running": row.max_running,
    }
