"""Wait for the end of a task."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from selectors import EVENT_READ, DefaultSelector
from typing import Any, TypeAlias
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from jobqueue.api.backends import uuid_of
from jobqueue.api.notifications import AWAIT_NOTIFICATION, END_NOTIFICATION
from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS, TaskResult, task_backends
from jobqueue.engine import Engine, engine_for, notify_on, statement, unpooled
from jobqueue.exceptions import TaskNotFound
from jobqueue.values.kinds import plain
from jobqueue.values.posix import at_fork
from jobqueue.values.states import FINAL

logger = logging.getLogger(__name__)

Result: TypeAlias = "TaskResult[..., Any]"

FIRST_WAIT_SECONDS = 0.01
LONGEST_WAIT_SECONDS = 0.5
LISTEN_AFTER_SECONDS = 0.1  # a shorter wait opens no connection
CHECK_SECONDS = 0.1  # how soon the listener sees new waits, and that there are none


def wait_for_result(
    result: Result | UUID | str, *, timeout: float | timedelta, backend: str = DEFAULT_TASK_BACKEND_ALIAS
) -> Result:
    """
    Wait until a task has ended, and return its result. It may be FAILED.

    result: of enqueue(), or the id of a task of `backend`. Raises TimeoutError after the timeout, TaskNotFound,
    TaskResultDoesNotExist if this process has no code for the task, and RuntimeError in a transaction, because the
    task may start only after its commit.
    """
    wait, event = _Wait(result, timeout, backend), threading.Event()
    with ExitStack() as stack:
        for seconds in wait.pauses():
            if wait.has_ended():
                return wait.read()
            wait.listen(seconds, stack, event.set)
            event.wait(seconds)
            event.clear()
    raise wait.error()


async def await_result(
    result: Result | UUID | str, *, timeout: float | timedelta, backend: str = DEFAULT_TASK_BACKEND_ALIAS
) -> Result:
    """Wait as wait_for_result() does, without a thread."""
    wait, event, loop = _Wait(result, timeout, backend), asyncio.Event(), asyncio.get_running_loop()
    with ExitStack() as stack:
        for seconds in wait.pauses():
            if await sync_to_async(wait.has_ended)():
                return await sync_to_async(wait.read)()
            wait.listen(seconds, stack, partial(loop.call_soon_threadsafe, event.set))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
            event.clear()
    raise wait.error()


class _Wait:
    def __init__(self, result: Result | UUID | str, timeout: float | timedelta, backend: str) -> None:
        self._id = uuid_of(result.id if isinstance(result, TaskResult) else result)
        self._engine: Engine = engine_for(result.backend if isinstance(result, TaskResult) else backend)
        self._seconds = float(plain(timeout))
        self._status = ""
        self._is_listening = False

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
                "wait_for_result() within transaction.atomic() might never return: a task that this transaction has "
                "enqueued starts after its commit. Call it outside the transaction. ATOMIC_REQUESTS opens one per view."
            )
        return status in FINAL

    def listen(self, seconds: float, stack: ExitStack, on_end: Callable[[], object]) -> None:
        """Let executors notify this process of the end, unless the wait is short. Call it before each pause."""
        if seconds >= LISTEN_AFTER_SECONDS and not self._is_listening and self._engine.options.notify:
            self._is_listening = True
            if connections[self._engine.database].vendor == "postgresql":
                stack.enter_context(_listener_of(self._engine).hear(str(self._id), on_end))

    def read(self) -> Result:
        return task_backends[self._engine.alias].get_result(str(self._id))

    def error(self) -> TimeoutError:
        return TimeoutError(f"Task {self._id} has not ended within {self._seconds:g} s: it is {self._status}.")


class _EndListener:
    """
    Hears from executors that tasks have ended, with one thread and one connection, while any wait lasts.

    It only saves time, so its errors end it, and the next wait starts it again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waits: dict[object, tuple[str, Callable[[], object]]] = {}  # the id of a task, and the call at its end
        self._new: list[str] = []  # ids that executors do not know yet
        self._thread: threading.Thread | None = None

    @contextmanager
    def hear(self, pk: str, on_end: Callable[[], object]) -> Iterator[None]:
        """Call on_end, in the listener's thread, when an executor has ended the task."""
        wait = object()
        with self._lock:
            self._waits[wait] = pk, on_end
            self._new.append(pk)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads of its parent
                self._thread = threading.Thread(target=self._run, name="jobqueue-ends", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[wait]

    def _run(self) -> None:
        wrapper = unpooled(self._engine.database)
        try:
            with wrapper.cursor() as cursor:
                cursor.execute(statement("listen"))
            connection: Any = wrapper.connection
            with DefaultSelector() as incoming:
                incoming.register(connection.fileno(), EVENT_READ)
                while (new := self._take_new()) is not None:
                    for pk in new:
                        notify_on(wrapper, f"{self._engine.alias} {AWAIT_NOTIFICATION}{pk}")
                    incoming.select(CHECK_SECONDS)
                    for notification in connection.notifies(timeout=0.0):  # also those that came with an answer
                        self._pass_on(notification.payload)
        except Exception as error:  # noqa: BLE001 - polling goes on
            logger.debug("end_listener.disconnected error=%s", error)
        finally:
            wrapper.close()

    def _take_new(self) -> list[str] | None:
        """Return the ids that came since the last call; None if no wait is left, and this thread is to end."""
        with self._lock:
            if not self._waits:
                self._thread = None
                return None
            new, self._new = self._new, []
            return new

    def _pass_on(self, payload: str) -> None:
        pk = payload.removeprefix(f"{self._engine.alias} {END_NOTIFICATION}")
        with self._lock:
            heard = [on_end for awaited, on_end in self._waits.values() if awaited == pk]
        for on_end in heard:
            with suppress(RuntimeError):  # the event loop has ended
                on_end()


@cache
def _listener_of(engine: Engine) -> _EndListener:
    return _EndListener(engine)


at_fork(after_in_child=_listener_of.cache_clear)  # the child has no thread of it, and none of its waits
