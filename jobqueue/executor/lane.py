"""Claimed tasks on their way to a thread or to the event loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from jobqueue.executor.hold import Hold


class Lane:
    """So many tasks at once, the others in line, best first."""

    def __init__(self, slots: int, start: Callable[[Hold], None]) -> None:
        self.slots = slots
        self._start = start
        self._waiting: deque[Hold] = deque()
        self._running = 0
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Slots that nothing runs in or waits for; negative when tasks wait."""
        return self.slots - self._running - len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, holds: Iterable[Hold]) -> None:
        with self._lock:
            self._waiting.extend(holds)
            self._pump()

    def left(self) -> None:
        """One task has left its slot; the next one starts at once, without waiting for the pulse."""
        with self._lock:
            self._running -= 1
            self._pump()

    def take_back(self, waited_seconds: float = 0.0) -> list[Hold]:
        """Take those out of the line that have waited so long."""
        limit = time.monotonic() - waited_seconds
        with self._lock:
            taken = [hold for hold in self._waiting if hold.claimed_at <= limit]
            if taken:
                self._waiting = deque(hold for hold in self._waiting if hold.claimed_at > limit)
        return taken

    def _pump(self) -> None:
        while self._running < self.slots and self._waiting:
            self._running += 1
            self._start(self._waiting.popleft())
