"""Wait for the end of a task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from jobqueue.api.backends import uuid_of
from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS, TaskResult, task_backends
from jobqueue.engine import Engine, engine_for
from jobqueue.exceptions import TaskNotFound
from jobqueue.values.kinds import plain
from jobqueue.values.states import FINAL

Result: TypeAlias = "TaskResult[..., Any]"

FIRST_WAIT_SECONDS = 0.01
LONGEST_WAIT_SECONDS = 0.5


def wait_for_result(
    result: Result | UUID | str, *, timeout: float | timedelta, backend: str = DEFAULT_TASK_BACKEND_ALIAS
) -> Result:
    """
    Wait until a task has ended, and return its result. It may be FAILED.

    result: of enqueue(), or the id of a task of `backend`. Raises TimeoutError after the timeout, TaskNotFound,
    TaskResultDoesNotExist if this process has no code for the task, and RuntimeError in a transaction, which the task
    may wait for.
    """
    wait = _Wait(result, timeout, backend)
    for seconds in wait.pauses():
        if wait.has_ended():
            return wait.read()
        time.sleep(seconds)
    raise wait.error()


async def await_result(
    result: Result | UUID | str, *, timeout: float | timedelta, backend: str = DEFAULT_TASK_BACKEND_ALIAS
) -> Result:
    """Wait as wait_for_result() does, without a thread."""
    wait = _Wait(result, timeout, backend)
    for seconds in wait.pauses():
        if await sync_to_async(wait.has_ended)():
            return await sync_to_async(wait.read)()
        await asyncio.sleep(seconds)
    raise wait.error()


class _Wait:
    def __init__(self, result: Result | UUID | str, timeout: float | timedelta, backend: str) -> None:
        self._id = uuid_of(result.id if isinstance(result, TaskResult) else result)
        self._engine: Engine = engine_for(result.backend if isinstance(result, TaskResult) else backend)
        self._seconds = float(plain(timeout))
        self._status = ""

    def pauses(self) -> Iterator[float]:
        """Yield how long to wait after each look: at most as long as since the first. The last look is at the end."""
        began_at = time.monotonic()
        end_at = began_at + self._seconds
        while (now := time.monotonic()) < end_at:
            yield min(max(FIRST_WAIT_SECONDS, now - began_at), LONGEST_WAIT_SECONDS, end_at - now)
        yield 0.0

    def has_ended(self) -> bool:
        """Read the state. Raises TaskNotFound and RuntimeError."""
        status = self._engine.db.tasks.filter(pk=self._id).values_list("status", flat=True).first()
        if status is None:
            raise TaskNotFound(f"There is no task {self._id} in backend {self._engine.alias!r}. Was it deleted?")
        self._status = status
        if status not in FINAL and connections[self._engine.database].in_atomic_block:
            raise RuntimeError(
                "wait_for_result() within transaction.atomic() might wait without end: a task that this transaction "
                "has enqueued starts after its commit. Wait outside of it; ATOMIC_REQUESTS opens one for each view."
            )
        return status in FINAL

    def read(self) -> Result:
        return task_backends[self._engine.alias].get_result(str(self._id))

    def error(self) -> TimeoutError:
        return TimeoutError(f"Task {self._id} has not ended within {self._seconds:g} s: it is {self._status}.")
