"""Pause and limit queues, and tell executors what to do."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from jobqueue.api.hints import notify_after_commit
from jobqueue.engine import engine_for
from jobqueue.engine.base import Engine
from jobqueue.models import Executor
from jobqueue.records import Command
from jobqueue.serialization.text import is_text
from jobqueue.task_options import time_problems

MOST_RUNNING = 1_000_000_000  # a limit, as far as a column goes


def pause(
    queue_name: str,
    *,
    by: str = "",
    reason: str = "",
    until: datetime | timedelta | None = None,
    backend: str = "default",
) -> None:
    """
    Keep executors from claiming tasks of a queue; what runs goes on. Seen within a second.

    until: when it runs again by itself, a moment or so long from now. Raises ValueError for one that has passed, or is
    beyond the year 9000, and for a text that is longer than its column.
    """
    for problem in time_problems("until", until):
        raise ValueError(f"{problem}.")
    for name, value, most in (("by", by, 150), ("reason", reason, 255)):
        if value != "" and not is_text(value, most):
            raise ValueError(f"{name} must be a text of at most {most} characters, not {value!r:.200}.")
    engine = engine_for(backend)
    now = engine.now()
    resume_at = now + until if isinstance(until, timedelta) else until
    if resume_at is not None and resume_at <= now:
        raise ValueError(f"A pause of {queue_name!r} until {resume_at:%Y-%m-%d %H:%M:%S} has ended already.")
    _write_queue(engine, queue_name, paused_at=now, paused_by=by, pause_reason=reason, resume_at=resume_at)


async def apause(queue_name: str, **options: Any) -> None:
    """See pause()."""
    await sync_to_async(pause, thread_sensitive=True)(queue_name, **options)


def resume(queue_name: str, *, backend: str = "default") -> None:
    """Let executors claim tasks of a paused queue again."""
    engine = engine_for(backend)
    engine.queues.filter(name=queue_name).update(paused_at=None, paused_by="", pause_reason="", resume_at=None)
    notify_after_commit(engine, {queue_name})


async def aresume(queue_name: str, **options: Any) -> None:
    """See resume()."""
    await sync_to_async(resume, thread_sensitive=True)(queue_name, **options)


def limit(queue_name: str, max_running: int | None, *, backend: str = "default") -> None:
    """
    Let no more tasks of a queue run at once, in all executors together; None lets any number. Seen within a second.

    What runs goes on, though it be more. Raises ValueError for less than 1: to let none run, pause the queue.
    """
    is_number = isinstance(max_running, int) and not isinstance(max_running, bool)
    if max_running is not None and not (is_number and 0 < max_running <= MOST_RUNNING):
        raise ValueError(
            f"max_running must be None or a whole number from 1 to {MOST_RUNNING:,}, not {max_running!r}; "
            "pause() lets none run."
        )
    engine = engine_for(backend)
    _write_queue(engine, queue_name, max_running=max_running)
    notify_after_commit(engine, {queue_name})


async def alimit(queue_name: str, max_running: int | None, **options: Any) -> None:
    """See limit()."""
    await sync_to_async(limit, thread_sensitive=True)(queue_name, max_running, **options)


def _write_queue(engine: Engine, name: str, **columns: Any) -> None:
    if not is_text(name, 128):
        raise ValueError(f"The name of a queue is a text of 1 to 128 characters, not {name!r:.200}.")
    engine.queues.update_or_create(backend=engine.alias, name=name, defaults=columns)


def command(executor_ids: Iterable[UUID | str], command: Command, *, backend: str = "default") -> int:
    """
    Ask executors to claim nothing more (QUIET), to claim again (RESUME) or to stop gracefully (STOP).

    Each hears it within a second or so, wherever it runs; its `state` says what it does. Written after the commit: a
    transaction that held an executor's row would keep it from beating. Returns how many have not stopped already.
    """
    engine = engine_for(backend)
    ids = [UUID(str(pk)) for pk in executor_ids]
    there = engine.executors.filter(pk__in=ids).exclude(state=Executor.State.STOPPED).count()
    transaction.on_commit(partial(engine.command, ids, Command(command)), using=engine.database)
    return there
