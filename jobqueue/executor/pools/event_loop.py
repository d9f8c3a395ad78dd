"""The event loop of `async def` tasks, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from asyncio.tasks import _unregister_task  # the documented way to keep a task out of all_tasks()
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any
from weakref import WeakSet

from jobqueue.engine.engine import Engine
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.forks import leave_if_forked, this_process
from jobqueue.executor.pools.threads import release_aborted
from jobqueue.executor.running.async_runner import BodyThread, make_task, run_async_task
from jobqueue.executor.running.task_runner import CompletedAttempt, ExecutorIdentity, OnStart
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.telemetry.logger import get_logger

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


os.register_at_fork(after_in_child=_stop_loops)


class EventLoop:
    """
    The event loop and its thread.

    on_failure: called if the thread ends unexpectedly. It ends the process.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], object]) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(make_task)
        _loops.add(self._loop)
        self._name, self._on_failure, self._process = name, on_failure, this_process()
        self._asked_at: float | None = None  # monotonic; of the first request without an answer
        self._borrowed_threads = _BorrowedThreads(thread_name_prefix=f"{name}-sync")
        self._loop.set_default_executor(self._borrowed_threads)
        self._permits = threading.Semaphore(MAX_BODY_THREADS)
        self.threads_taken = 0  # by bodies that have ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._run_until_closed()
        except BaseException as failure:  # noqa: BLE001 - a body can do anything to the loop
            self._on_failure(failure)

    def _run_until_closed(self) -> None:
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
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        await self._loop.shutdown_asyncgens()

    @property
    def ended(self) -> list[str]:
        """Name the loop's thread, if it has ended."""
        return [] if self._thread.is_alive() else [self._thread.name]

    def silent_seconds(self) -> float:
        """Ask the loop to answer. Return the seconds since the first request without an answer."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)
        since = self._asked_at
        return 0.0 if since is None else time.monotonic() - since

    def _answer(self) -> None:
        self._asked_at = None

    def submit(
        self,
        hold: RunningTask,
        engine: Engine,
        worker: ExecutorIdentity,
        on_start: OnStart,
        done: Callable[[CompletedAttempt], None],
    ) -> None:
        """Run one claimed task; `done` gets its outcome, in the loop's thread."""
        is_there = threading.get_ident() == self._thread.ident  # where no wake-up has to be written to the loop
        call_soon = self._loop.call_soon if is_there else self._loop.call_soon_threadsafe
        # A new context: the caller may run in the context of another task, which has just ended.
        call_soon(self._start, hold, engine, worker, on_start, done, context=Context())

    def _start(
        self,
        hold: RunningTask,
        engine: Engine,
        worker: ExecutorIdentity,
        on_start: OnStart,
        done: Callable[[CompletedAttempt], None],
    ) -> None:
        async def run() -> None:
            try:
                thread = BodyThread(self._permits, f"{self._name}-async")
                attempt = await run_async_task(hold, engine, worker, on_start, thread, self._borrowed_threads)
                self.threads_taken += thread.is_used
            except BaseException as error:
                if self._is_closing and isinstance(error, asyncio.CancelledError):
                    raise
                attempt = release_aborted(hold, error, worker)
            self._finish(done, attempt)

        try:
            task = asyncio.Task(run(), loop=self._loop)  # bypasses a factory that a body may have set
        except BaseException as error:  # noqa: BLE001 - asyncio would only log it, and the task would stay RUNNING
            self._finish(done, release_aborted(hold, error, worker))
            return
        _unregister_task(task)  # all_tasks() does not show it, so that no body can cancel it or wait for it
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, done: Callable[[CompletedAttempt], None], attempt: CompletedAttempt) -> None:
        try:
            done(attempt)
        except BaseException as failure:  # noqa: BLE001 - asyncio would only log it, and the task would stay RUNNING
            self._on_failure(failure)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the loop. Return whether its thread has ended."""
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()


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
