"""The interface of a pool: its slots, the claimed tasks that wait for one, and its threads."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jobqueue.executor.database import task_connections
from jobqueue.executor.running import events
from jobqueue.executor.running.actor_runner import poll_again
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, RunningTask
from jobqueue.executor.telemetry.errors import is_starved
from jobqueue.executor.telemetry.logger import get_logger, mask_for
from jobqueue.executor.watchdog import CHECK_SECONDS
from jobqueue.values.text import printable

logger = get_logger(__name__)

PREFETCH_SECONDS = 0.1  # claim beyond the free slots what will start within this time
MAX_PREFETCH = 1000
LAST_TASK_WEIGHT = 0.2  # of one task's duration in the mean


class SiteThreads(ABC):
    """
    Threads that run the site's code.

    on_failure: called if one of them ends unexpectedly. It ends the process.
    """

    def __init__(self, on_failure: Callable[[BaseException], object]) -> None:
        self._on_failure = on_failure
        self._threads: list[threading.Thread] = []

    def _start_thread(self, name: str) -> None:
        self._threads.append(threading.Thread(target=self._run_thread, name=name, daemon=True))
        self._threads[-1].start()

    def _run_thread(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # noqa: BLE001 - the site's code can raise any exception in this thread
            self._on_failure(failure)

    @abstractmethod
    def _work(self) -> None:
        """Run the site's code until close()."""

    def ended_threads(self) -> Iterator[str]:
        """Name the threads that have ended."""
        return (thread.name for thread in self._threads if not thread.is_alive())

    def blocked(self, limit_seconds: float) -> str | None:
        """Say what the site's code has blocked for longer than the limit."""
        return None

    def cut_connections(self) -> None:  # noqa: B027 - there may be none to close
        """Close the database connections of code that still runs, so that it writes nothing more."""

    def take_waiting_for_connections(self) -> int:
        """Return how many tasks, at most, have waited long for database connections since the last call."""
        return 0

    @abstractmethod
    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads. Return whether all have ended."""

    def _join(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """All threads of a process that run the site's code."""

    members: Sequence[SiteThreads]

    def stalled(self) -> Iterator[str]:
        """Name the threads that have ended unexpectedly. The process should be restarted."""
        return (f"The thread {name} has ended." for threads in self.members for name in threads.ended_threads())

    def blocked(self, limit_seconds: float) -> Iterator[str]:
        """Name what the site's code has blocked for longer than the limit."""
        return (what for threads in self.members if (what := threads.blocked(limit_seconds)))

    def take_waiting_for_connections(self) -> int:
        """Return how many tasks, at most, have waited long for database connections since the last call."""
        return sum(threads.take_waiting_for_connections() for threads in self.members)

    def cut_connections(self) -> None:
        """Close the database connections of bodies and receivers that still run."""
        for threads in self.members:
            threads.cut_connections()

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads. Return whether all have ended."""
        have_ended = [threads.close(timeout_seconds) for threads in self.members]
        return all(have_ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """The functions that a pool calls."""

    on_completed: Callable[[CompletedAttempt], None]  # receives what became of each task, in any thread
    on_deadline: Callable[[], None]  # a body with a short timeout has started
    on_failure: Callable[[BaseException], object]  # a thread of the pool has ended unexpectedly

    def on_start(self, attempt: Attempt) -> None:
        """Announce that an attempt starts, then start its clock. Receivers of the signal leave no connection open."""
        has_run_code = events.report_start(attempt) or attempt.context is not None  # an actor's State is code, too
        task_connections.reset(has_run_code=has_run_code)  # a connection may have died since the last body
        timeout = attempt.run_options.timeout
        attempt.running.start(timeout)
        if timeout is not None and timeout < CHECK_SECONDS:  # the watchdog sees a longer timeout in time by itself
            self.on_deadline()


class Pool(SiteThreads):
    """Runs up to `slots` tasks at once. A few more wait in front of it, best rank first. Any thread may call it."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        super().__init__(context.on_failure)
        self._slots, self._context = slots, context
        self._waiting: deque[RunningTask] = deque()
        self._running: dict[RunningTask, float] = {}  # the moment when each started
        self._mean_seconds: float | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # slower to enter than its lock: by two calls of Python

    def submit(self, tasks: Sequence[RunningTask]) -> None:
        """Run tasks, best rank first, as soon as slots are free."""
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify(len(self._waiting))

    def free_slots(self) -> int:
        """Return the number of slots that no task uses or waits for. It is negative when tasks wait."""
        with self._lock:
            return self._slots - len(self._running) - len(self._waiting)

    def capacity(self) -> int:
        """Return how many more tasks to claim: those that start at once or very soon."""
        return max(0, self.free_slots() + self._prefetch())

    def _prefetch(self) -> int:
        """
        Return how many tasks may wait for a slot, judging by the duration of the last ones.

        A slot does not count if its task has run for long, because it will not be free soon.
        """
        with self._lock:
            mean = self._mean_seconds
            if mean is None or mean * 2 > PREFETCH_SECONDS:
                return 0
            limit = time.monotonic() - PREFETCH_SECONDS
            slots = self._slots - sum(started_at < limit for started_at in self._running.values())
        return min(MAX_PREFETCH, int(slots * PREFETCH_SECONDS / max(mean, 1e-5)))

    def evict(self, waited_seconds: float) -> list[RunningTask]:
        """Remove and return the tasks that have waited so long for a slot, or were interrupted."""
        limit = time.monotonic() - waited_seconds
        with self._lock:
            evicted = [task for task in self._waiting if task.claimed_at <= limit or task.reason is not None]
            if evicted:
                removed = set(evicted)
                self._waiting = deque(task for task in self._waiting if task not in removed)
        return evicted

    def _take(self) -> RunningTask | None:
        """Give the next task a slot. Return None when no task waits, or no slot is free."""
        with self._lock:
            if not self._waiting or len(self._running) >= self._slots:
                return None
            task = self._waiting.popleft()
            self._running[task] = time.monotonic()
            return task

    def _take_after(self, ended: RunningTask) -> RunningTask | None:
        """Free the slot of a task that has ended, and give it to the next task. Return None when no task waits."""
        with self._lock:
            now = time.monotonic()
            seconds = now - self._running.pop(ended)
            mean = seconds if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = mean + LAST_TASK_WEIGHT * (seconds - mean)
            if not self._waiting:
                return None
            task = self._waiting.popleft()
            self._running[task] = now
            return task


def release_aborted(running: RunningTask, error: BaseException) -> CompletedAttempt:
    """
    Release a task after a failure outside its body.

    This counts no attempt, because the cause is the executor, the site, or another task that used up the memory.
    """
    if not is_starved(error):
        logger.error(
            "task.aborted task=%s id=%s",
            printable(running.claimed.task_type),
            running.id,
            exc_info=error,
            extra=events.task_fields(running) | {"mask": mask_for(running.claimed, running.identity.options)},
        )
    return CompletedAttempt(running=running, outcome=poll_again(running), error=error)
