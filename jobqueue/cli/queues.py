"""`pause`, `resume` and `limit`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError

from jobqueue import api
from jobqueue.cli.audit import note, user
from jobqueue.cli.backends import check_queue_name, engine_of
from jobqueue.cli.console import Console
from jobqueue.cli.tables import many
from jobqueue.engine.base import Engine
from jobqueue.models import Queue


def pause(
    console: Console,
    names: Sequence[str],
    backend: str | None,
    *,
    by: str | None,
    reason: str,
    until: timedelta | datetime | None = None,
) -> None:
    """Keep executors from claiming tasks of some queues; all names are looked at before the first is paused."""
    engine = _engine_for(names, backend)
    for name in names:
        try:
            api.pause(name, by=user() if by is None else by, reason=reason, until=until, backend=engine.alias)
        except ValueError as error:
            raise CommandError(str(error)) from error
        note("pause", by, queue=name, backend=engine.alias, reason=reason, until=until and str(until))
    _report(console, engine, names)


def resume(console: Console, names: Sequence[str], backend: str | None) -> None:
    """Let executors claim tasks of some queues again."""
    engine = _engine_for(names, backend)
    paused = {row.name for row in _rows(engine, names) if row.is_paused_at(engine.now())}
    for name in names:
        if name not in paused:
            console.say(f"{name} was not paused.")
        api.resume(name, backend=engine.alias)
        note("resume", queue=name, backend=engine.alias)
    _report(console, engine, names)


def limit(console: Console, name: str, most: int | None, backend: str | None) -> None:
    """Let no more tasks of a queue run at once."""
    engine = _engine_for([name], backend)
    try:
        api.limit(name, most, backend=engine.alias)
    except ValueError as error:
        raise CommandError(str(error)) from error
    note("limit", queue=name, backend=engine.alias, max_running="none" if most is None else most)
    _report(console, engine, [name])


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
        console.write_json({row.name: state(row, now) for row in rows})
        return
    for row in rows:
        most = "" if row.max_running is None else f", at most {many(row.max_running, 'task')} at once"
        if row.is_paused_at(now):
            until = f" until {row.resume_at:%Y-%m-%d %H:%M:%S %Z}" if row.resume_at else ""
            console.write(f"{row.name} is paused{until}: executors claim nothing more of it, what runs goes on.")
        else:
            console.write(f"{row.name} runs{most}.")


def state(row: Queue, now: datetime) -> dict[str, Any]:
    """Say for programs what people have said of a queue."""
    is_paused = row.is_paused_at(now)
    return {
        "is_paused": is_paused,
        "paused_by": row.paused_by if is_paused else "",
        "pause_reason": row.pause_reason if is_paused else "",
        "resume_at": row.resume_at if is_paused else None,
        "max_running": row.max_running,
    }
