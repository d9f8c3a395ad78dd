"""Pause and limit queues, and send commands to executors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from jobqueue.api.notifications import notify_after_commit
from jobqueue.declarations.options import MAX_CHARACTERS, time_problems
from jobqueue.engine import Engine, engine_for
from jobqueue.models import Executor
from jobqueue.values import kinds
from jobqueue.values.states import Command

MAX_RUNNING_LIMIT = 1_000_000_000  # what the column can store


def pause(
    queue_name: str,
    *,
    by: str = "",
    reason: str = "",
    until: datetime | timedelta | None = None,
    backend: str = "default",
) -> None:
    """
    Keep executors from claiming tasks of a queue. Running tasks continue. Executors obey within a second.

    until: when the pause ends, a datetime or a timedelta from now. Raises ValueError if this time is past or after the
    year 9000, or if a text is too long. Raises OperationalError if another transaction has locked the queue's row for
    more than a second.
    """
    engine = engine_for(backend)
    _write_queue(engine, queue_name, **pause_columns(repr(queue_name), by, reason, until, engine.db.now()))


def pause_columns(what: str, by: str, reason: str, until: datetime | timedelta | None, now: datetime) -> dict[str, Any]:
    """Return the columns of a pause. Raises ValueError if they cannot be used. what: a name for the message."""
    for problem in time_problems("until", until):
        raise ValueError(f"{problem}.")
    kinds.check("by", by, kinds.text(150, at_least=0))
    kinds.check("reason", reason, kinds.text(255, at_least=0))
    resume_at = now + until if isinstance(until, timedelta) else until
    if resume_at is not None and resume_at <= now:
        raise ValueError(f"The end of a pause of {what} must be in the future, not {resume_at:%Y-%m-%d %H:%M:%S}.")
    return {"paused_at": now, "paused_by": by, "pause_reason": reason, "resume_at": resume_at}


def resume(queue_name: str, *, backend: str = "default") -> None:
    """Let executors claim tasks of a paused queue again. Raises OperationalError as pause() does."""
    engine = engine_for(backend)
    engine.queues.resume(queue_name)
    notify_after_commit(engine, {queue_name})


def limit_queue(queue_name: str, max_running: int | None, *, backend: str = "default") -> None:
    """
    Limit how many tasks of a queue run at once, in all executors together. None removes the limit.

    Executors obey within a second. Running tasks continue, even if they exceed the limit. Raises ValueError for less
    than 1: to stop a queue, pause it. Raises OperationalError as pause() does.
    """
    if max_running is not None:
        advice = "None removes the limit. To run none, use pause()."
        kinds.check("max_running", max_running, kinds.whole(1, MAX_RUNNING_LIMIT), advice)
    engine = engine_for(backend)
    _write_queue(engine, queue_name, max_running=max_running)
    notify_after_commit(engine, {queue_name})


def _write_queue(engine: Engine, name: str, **columns: Any) -> None:
    kinds.check("A queue name", name, kinds.text(MAX_CHARACTERS["queue_name"]))
    engine.queues.change(name, **columns)


def command(executor_ids: Iterable[UUID | str], command: Command, *, backend: str = "default") -> int:
    """
    Ask executors to claim nothing more (PAUSE), to claim again (RESUME) or to stop gracefully (STOP).

    Each executor obeys within about a second, on any host. The `state` of its heartbeat shows what it does. Return how
    many of them have not stopped yet. The command is written after the commit, because an executor skips a command in
    a locked row. Raises OperationalError then if another transaction has locked a row for more than a second.
    """
    engine = engine_for(backend)
    ids = [UUID(str(pk)) for pk in executor_ids]
    active = engine.db.executors.filter(pk__in=ids).exclude(heartbeat__state=Executor.State.STOPPED).count()
    transaction.on_commit(partial(_write_command, engine, ids, Command(command)), using=engine.database)
    return active


def _write_command(engine: Engine, ids: Collection[UUID], command: Command) -> None:
    with engine.db.bounded("an executor"):
        engine.executors.command(ids, command)
