"""The slots of a pool, and the claimed tasks that wait for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from jobqueue.executor.running_tasks import RunningTask

PREFETCH_SECONDS = 0.1  # claim beyond the free slots what will start within this time
MAX_PREFETCH = 1000
LAST_TASK_WEIGHT = 0.2  # of one task's duration in the mean


class TaskBuffer:
    """A fixed number of slots, and a queue in front of them, best rank first. Any thread may call it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._waiting: deque[RunningTask] = deque()
        self._running: dict[RunningTask, float] = {}  # the moment when each started
        self._mean_seconds: float | None = None
        self._changed = threading.Condition()
        self._is_closed = False

    def free(self) -> int:
        """Return the number of slots that no task uses or waits for. It is negative when tasks wait."""
        with self._changed:
            return self.slots - len(self._running) - len(self._waiting)

    def prefetch(self) -> int:
        """
        Return how many tasks may wait for a slot, judging by the duration of the last ones.

        A slot does not count if its task has run for long, because it will not be free soon.
        """
        with self._changed:
            mean = self._mean_seconds
            if mean is None or mean * 2 > PREFETCH_SECONDS:
                return 0
            limit = time.monotonic() - PREFETCH_SECONDS
            slots = self.slots - sum(started_at < limit for started_at in self._running.values())
        return min(MAX_PREFETCH, int(slots * PREFETCH_SECONDS / max(mean, 1e-5)))

    def put(self, tasks: Iterable[RunningTask]) -> None:
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify(len(self._waiting))

    def take(self) -> RunningTask | None:
        """Give the next task a slot. Return None when no task waits, or no slot is free."""
        with self._changed:
            return self._start_next() if self._waiting and len(self._running) < self.slots else None

    def wait_and_take(self) -> RunningTask | None:
        """Wait for a task and give it a slot. Return None when the buffer is closed and empty."""
        with self._changed:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._changed.wait()
            return self._start_next()

    def _start_next(self) -> RunningTask:
        task = self._waiting.popleft()
        self._running[task] = time.monotonic()
        return task

    def release(self, task: RunningTask) -> None:
        """Free the slot of a task that has ended."""
        with self._changed:
            seconds = time.monotonic() - self._running.pop(task)
            mean = seconds if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = mean + LAST_TASK_WEIGHT * (seconds - mean)

    def evict(self, waited_seconds: float = 0.0) -> list[RunningTask]:
        """Remove the tasks that have waited for so long, or were interrupted."""
        limit = time.monotonic() - waited_seconds
        with self._changed:
            evicted = [task for task in self._waiting if task.claimed_at <= limit or task.should_stop()]
            if evicted:
                removed = set(evicted)
                self._waiting = deque(task for task in self._waiting if task not in removed)
        return evicted

    def close(self) -> None:
        """Let wait_and_take() return None as soon as no task waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
