"""The event loop as a pool: `async def` tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobqueue.executor.pools.base import Pool, PoolContext
from jobqueue.executor.pools.event_loop import EventLoop
from jobqueue.executor.running.task_runner import CompletedAttempt
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.standard_streams import fill_standard_streams


class AsyncPool(Pool):
    """One event loop in a thread of its own. It starts tasks as slots become free."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        super().__init__(slots, context)
        self._loop = EventLoop("jobqueue", context.on_failure)

    def submit(self, tasks: Sequence[RunningTask]) -> None:
        self._buffer.put(tasks)
        self._start_tasks()

    def _start_tasks(self) -> None:
        context = self._context
        while (task := self._buffer.take()) is not None:
            self._loop.submit(task, context.engine, context.worker, context.on_start, self._finish)

    def _finish(self, attempt: CompletedAttempt) -> None:
        fill_standard_streams()
        self._buffer.release(attempt.hold)
        self._start_tasks()  # without waiting for the executor's loop
        self._context.on_completed(attempt)

    def ended_threads(self) -> Iterator[str]:
        return iter(self._loop.ended)

    def blocked_seconds(self) -> float:
        return self._loop.silent_seconds()

    def close(self, timeout_seconds: float) -> bool:
        return self._loop.close(timeout_seconds)
