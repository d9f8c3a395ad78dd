"""The interface of a pool, and what a pool needs to run a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jobqueue.engine.engine import Engine
from jobqueue.executor.database import task_connections
from jobqueue.executor.pools.buffer import TaskBuffer
from jobqueue.executor.running.task_runner import CompletedAttempt, ExecutorIdentity, PreparedTask
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.telemetry import events
from jobqueue.executor.watchdog import LOOK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """
    What a pool needs to run a task.

    on_completed: receives what became of each task, in any thread. on_deadline: a body with a short timeout has
    started. on_failure: called if a thread of the pool ends unexpectedly. It ends the process.
    """

    engine: Engine
    worker: ExecutorIdentity
    on_completed: Callable[[CompletedAttempt], None]
    on_deadline: Callable[[], None]
    on_failure: Callable[[BaseException], object]

    def on_start(self, task: RunningTask, loaded: PreparedTask) -> None:
        """Announce that an attempt starts, then start its clock. Receivers of the signal leave no connection open."""
        events.report_start(task, loaded, self.worker)
        task_connections.reset()  # a connection may have died since the last body
        timeout = loaded.limits.timeout
        task.start(timeout)
        if timeout is not None and timeout < LOOK_SECONDS:  # the watchdog sees a longer timeout in time by itself
            self.on_deadline()


class Pool(ABC):
    """Runs up to `slots` tasks at once. More may wait in its buffer."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        self._buffer, self._context = TaskBuffer(slots), context

    @abstractmethod
    def submit(self, tasks: Sequence[RunningTask]) -> None:
        """Run tasks, best rank first, as soon as slots are free."""

    @abstractmethod
    def ended_threads(self) -> Iterator[str]:
        """Name the threads of this pool that have ended."""

    @abstractmethod
    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads. Return whether all have ended."""

    def free_slots(self) -> int:
        """Return how many tasks would start at once."""
        return max(0, self._buffer.free())

    def capacity(self) -> int:
        """Return how many more tasks to claim: those that start at once or very soon."""
        return max(0, self._buffer.free() + self._buffer.prefetch())

    def evict(self, waited_seconds: float) -> list[RunningTask]:
        """Remove and return the tasks that have waited so long for a slot, or were interrupted."""
        return self._buffer.evict(waited_seconds)

    def blocked_seconds(self) -> float:
        """Return for how long a task has kept the others of this pool from running."""
        return 0.0

    def cut_connections(self) -> None:  # noqa: B027 - a pool may have none to close
        """Close the database connections of bodies that still run, so that they write nothing more."""
