"""The pool of `async def` tasks: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from asyncio.tasks import _unregister_task  # the documented way to keep a task out of all_tasks()
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any
from weakref import WeakSet

from jobqueue.executor.database.permits import Permits
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.pools.base import Pool, PoolContext, release_aborted
from jobqueue.executor.process_guard import fill_standard_streams, leave_if_forked, this_process
from jobqueue.executor.running.async_runner import AsyncRun, BodyThread, make_owned_task
from jobqueue.executor.running.attempt import CompletedAttempt, RunningTask, running_here
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.posix import at_fork

logger = get_logger(__name__)

CANCEL_SECONDS = 0.5  # for cancelled bodies to end when the loop ends
MAX_BODY_THREADS = 32  # bodies that have database connections at once: a server has 100 connections by default


_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _stop_loops() -> None:
    """Stop the event loops in a child process that a body has forked."""
    for loop in _loops:
        loop.stop()
        # stop() alone lets ready callbacks run once more. asyncio has no public way to drop them.
        getattr(loop, "_ready", deque()).clear()


at_fork(after_in_child=_stop_loops)


class AsyncPool(Pool):
    """One event loop in a thread of its own. It starts tasks as slots become free."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        super().__init__(slots, context)
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(make_owned_task)
        _loops.add(self._loop)
        self._process = this_process()
        self._asked_at: float | None = None  # monotonic; of the first request without an answer
        self._borrowed_threads = _BorrowedThreads(thread_name_prefix="jobqueue-sync")
        self._loop.set_default_executor(self._borrowed_threads)
        self._permits = Permits(MAX_BODY_THREADS)
        self._tasks: set[asyncio.Task[Any]] = set()  # that wait for threads of bodies
        self._is_closing = False
        self._start_thread("jobqueue-loop")

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closing:
            try:
                self._loop.run_forever()
            except BaseException:
                leave_if_forked(self._process)
                if self._loop.is_closed():
                    raise
                logger.exception("event_loop.failed")
            leave_if_forked(self._process)
        self._loop.set_task_factory(None)  # a body may have replaced it
        try:
            self._loop.run_until_complete(self._cancel_all())
        finally:
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = (asyncio.all_tasks() | self._tasks) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        for pending in (tasks, self._tasks):  # then the ends of bodies in their threads
            if pending:
                await asyncio.wait(pending, timeout=CANCEL_SECONDS)
        await self._loop.shutdown_asyncgens()

    def blocked(self, limit_seconds: float) -> str | None:
        """Ask the loop to answer. Report a task that has kept it from doing so."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it has ended and is closed
                self._asked_at = None
        seconds = time.monotonic() - (self._asked_at or time.monotonic())
        return (
            f"The event loop has not moved for {seconds:.0f} s: an async task blocks it."
            if seconds > limit_seconds
            else None
        )

    def take_waiting_for_connections(self) -> int:
        return self._permits.take_waiting()

    def _answer(self) -> None:
        self._asked_at = None

    def submit(self, tasks: Sequence[RunningTask]) -> None:
        super().submit(tasks)
        self._loop.call_soon_threadsafe(self._start_waiting)

    def _start_waiting(self) -> None:
        """Start tasks while slots are free. One that cannot start, for want of memory, takes no other with it."""
        while (task := self._take()) is not None:
            try:
                task.variables.run(self._start, task)
            except BaseException as error:  # noqa: BLE001 - asyncio would only log it, and the task would stay RUNNING
                self._finish(task, error)

    def _start(self, task: RunningTask) -> None:
        try:
            thread = BodyThread(self._permits, self._borrowed_threads, "jobqueue-async")
            AsyncRun(task, self._context.on_start, thread, self._make_task, self._finish).start()
        except BaseException as error:  # noqa: BLE001 - as above
            self._loop.call_soon(self._finish, task, error)

    def _make_task(self, work: Coroutine[Any, Any, Any], variables: Context) -> asyncio.Task[Any]:
        # This bypasses a factory that a body may have set.
        task = asyncio.Task(work, loop=self._loop, context=variables)
        _unregister_task(task)  # all_tasks() does not show it, so that no body can cancel it or wait for it
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _finish(self, running: RunningTask, result: CompletedAttempt | BaseException) -> None:
        if self._is_closing and isinstance(result, asyncio.CancelledError):
            return
        try:
            completed = release_aborted(running, result) if isinstance(result, BaseException) else result
            fill_standard_streams()
            running.variables = running.variables.copy()  # tasks that the body has left may run in the original
            running.variables.run(running_here.set, None)  # as in ThreadPool: no circle of references
            if (following := self._take_after(running)) is not None:
                following.variables.run(self._start, following)
            self._context.on_completed(completed)
        except BaseException as failure:  # noqa: BLE001 - asyncio would only log it, and the task would stay RUNNING
            self._context.on_failure(failure)

    def close(self, timeout_seconds: float) -> bool:
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        has_ended = self._join(timeout_seconds)
        if has_ended:
            self._loop.close()  # again, unless the thread has ended before it could
        return has_ended


class _BorrowedThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread` and the like. They keep no connection and no context after a call."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(Context().run, _call_with_connections, function, *args, **kwargs)


def _call_with_connections(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    connections = TaskConnections()
    connections.enter()
    try:
        return function(*args, **kwargs)
    finally:
        connections.leave()
