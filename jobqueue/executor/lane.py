"""Claimed tasks on their way to a thread or to the event loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from jobqueue.executor.hold import Hold

AHEAD_SECONDS = 0.1  # claim beyond the free slots what will start within this time
AHEAD_MOST = 500
WEIGHT_OF_LAST = 0.2  # of one task's time in the mean


class Lane:
    """So many tasks at once, the others in line, best first."""

    def __init__(self, slots: int, start: Callable[[Hold], None]) -> None:
        self.slots = slots
        self._start = start
        self._waiting: deque[Hold] = deque()
        self._running: dict[Hold, float] = {}  # since when
        self._mean_seconds: float | None = None
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Slots that nothing runs in or waits for; negative when tasks wait."""
        with self._lock:
            return self.slots - len(self._running) - len(self._waiting)

    def ahead(self) -> int:
        """
        How many tasks may wait in line, going by how long the last ones took.

        Only slots count whose task is young: one that has been busy for long will not be free soon.
        """
        with self._lock:
            mean = self._mean_seconds
            if mean is None or mean * 2 > AHEAD_SECONDS:
                return 0
            limit = time.monotonic() - AHEAD_SECONDS
            busy = sum(since < limit for since in self._running.values())
        return min(AHEAD_MOST, int((self.slots - busy) * AHEAD_SECONDS / max(mean, 1e-5)))

    def add(self, holds: Iterable[Hold]) -> None:
        with self._lock:
            self._waiting.extend(holds)
            self._fill()

    def left(self, hold: Hold) -> None:
        """A task has left its slot; the next one starts at once, without waiting for the pulse."""
        with self._lock:
            took = time.monotonic() - self._running.pop(hold)
            mean = took if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = mean + WEIGHT_OF_LAST * (took - mean)
            self._fill()

    def take_back(self, waited_seconds: float = 0.0) -> list[Hold]:
        """Take those out of the line that have waited so long, or were told to stop."""
        limit = time.monotonic() - waited_seconds
        with self._lock:
            taken = [hold for hold in self._waiting if hold.claimed_at <= limit or hold.is_told_to_stop()]
            if taken:
                gone = set(taken)
                self._waiting = deque(hold for hold in self._waiting if hold not in gone)
        return taken

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            hold = self._waiting.popleft()
            self._running[hold] = time.monotonic()
            self._start(hold)
