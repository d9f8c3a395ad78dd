"""`pause` and `resume`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from jobqueue import api
from jobqueue.cli.console import Console
from jobqueue.cli.figures import is_paused
from jobqueue.cli.rows import engine_of, refuse_unknown_queue
from jobqueue.engine.base import Engine
from jobqueue.models import Queue


def pause(console: Console, names: Sequence[str], backend: str | None, *, by: str | None, reason: str) -> None:
    """Keep executors from claiming tasks of some queues; all names are looked at before the first is paused."""
    engine = _engine_for(names, backend)
    for name in names:
        api.pause(name, by=_user() if by is None else by, reason=reason, backend=engine.alias)
    _report(console, engine, names, "is paused: executors claim nothing more of it, what runs goes on.")


def resume(console: Console, names: Sequence[str], backend: str | None) -> None:
    """Let executors claim tasks of some queues again."""
    engine = _engine_for(names, backend)
    for name in set(names) - _paused(engine):
        console.say(f"{name} was not paused.")
    for name in names:
        api.resume(name, backend=engine.alias)
    _report(console, engine, names, "runs.")


def _engine_for(names: Sequence[str], backend: str | None) -> Engine:
    engine = engine_of(backend)
    for name in names:
        refuse_unknown_queue(engine, name)
    return engine


def _paused(engine: Engine) -> set[str]:
    now = engine.now()
    rows = Queue.objects.using(engine.database).filter(backend=engine.alias, paused_at__isnull=False)
    return {row.name for row in rows if is_paused(row, now)}


def _report(console: Console, engine: Engine, names: Sequence[str], words: str) -> None:
    if console.is_json:
        paused = _paused(engine)
        console.write_json({name: {"is_paused": name in paused} for name in names})
        return
    for name in names:
        console.write(f"{name} {words}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return ""
