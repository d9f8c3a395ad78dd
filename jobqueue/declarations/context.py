"""The context of a body: what it may ask and report while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from asgiref.sync import sync_to_async

from jobqueue.conf.compat import TaskContext
from jobqueue.declarations.middleware import CONTEXT
from jobqueue.values.text import escape

NOTE_CHARACTERS = 200


def not_shown(done: float, total: float | None, note: str) -> None:
    """Do nothing with reported progress, for example in a test that makes a context by hand."""


def not_kept(value: Any) -> None:
    """Do nothing with a checkpoint, for example in a test that makes a context by hand."""


def checked_progress(done: Any, total: Any, note: Any) -> tuple[float, float | None, str]:
    """Return progress as it can be stored. A long note is cut."""
    for name, value in (("done", done), ("total", total)):
        if value is None and name == "total":
            continue
        if isinstance(value, bool) or not issubclass(type(value), int | float):  # no lazy object
            raise TypeError(f"progress() takes a number as {name}, not {value!r:.100}.")
        if not 0 <= value < inf:
            raise ValueError(f"progress() takes a finite number from 0 as {name}, not {value!r:.100}.")
    return float(done), None if total is None else float(total), escape(str(note))[:NOTE_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):  # type: ignore[misc,type-arg]
    """Django's TaskContext with an idempotency key and a cancel flag."""

    idempotency_key: str  # the same for each attempt. Pass it to systems that accept such keys.
    should_stop: Callable[[], bool]  # whether the executor stops, or the task is to be cancelled
    schedule: str | None = None  # the name of the schedule that enqueued the task; None for other tasks
    scheduled_at: datetime | None = None  # the tick of the schedule that the task stands for; None for other tasks
    report: Callable[[float, float | None, str], None] = not_shown  # of progress: done, total or None, and a note
    retries: int = 0  # attempts that have failed; `attempt` also counts those that a stop or a crash interrupted
    stored_metadata: str = "{}"  # JSON text

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata: what `using(metadata=...)` has given it."""
        stored: dict[str, Any] = json.loads(self.stored_metadata)
        return {key: value for key, value in stored.items() if key != CONTEXT}  # without the values of MIDDLEWARE

    keep: Callable[[Any], None] = not_kept  # a checkpoint
    last_checkpoint: Any = None  # with which this attempt begins; None: the first attempt, or none was stored

    def checkpoint(self, value: Any) -> None:
        """
        Store a JSON value, with which the next attempt begins as `last_checkpoint`, whatever ends this one.

        It is committed when this returns; in a transaction.atomic() on the queue's database, together with it.

        Raises InvalidArguments for what is not JSON, PayloadTooLarge, ClaimLost, and RuntimeError with atomic=True.
        """
        self.keep(value)

    async def acheckpoint(self, value: Any) -> None:
        """See checkpoint()."""
        await sync_to_async(self.keep, thread_sensitive=True)(value)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """
        Report how much is done, to show it on the task's page.

        Progress is written at most once a second, however often you call this method.

        Raises TypeError for what is no number, and ValueError for a negative or infinite one.
        """
        self.report(*checked_progress(done, total, note))

    @property
    def cancelled(self) -> bool:
        """
        Whether the body should stop: cancelled, timed out, its claim is lost, or its executor stops.

        If a function has seen here that the executor stops, its task is released when it ends, and starts again.
        """
        return self.should_stop()
