"""Claimed tasks on their way to a thread or to the event loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from jobqueue.executor.hold import Hold

AHEAD_SECONDS = 0.1  # claim beyond the free slots what will start within this time
AHEAD_MOST = 1000
WEIGHT_OF_LAST = 0.2  # of one task's time in the mean
MEDIAN_STEP = 1.05  # up or down with each task
SHORT_SECONDS = 0.0005  # tasks shorter than this are not worth waking one more thread
LOOKOUT_SECONDS = 0.001  # unless the line has not moved for this long


class Lane:
    """So many tasks at once, the others in line, best first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._waiting: deque[Hold] = deque()
        self._running: dict[Hold, float] = {}  # since when
        self._mean_seconds: float | None = None
        self._median_seconds = 1.0
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Slots that nothing runs in or waits for; negative when tasks wait."""
        with self._lock:
            return self.slots - len(self._running) - len(self._waiting)

    @property
    def has_moved(self) -> bool:
        """Whether any task has ended here."""
        return self._mean_seconds is not None

    def ahead(self) -> int:
        """
        How many tasks may wait in line, going by how long the last ones took.

        Only slots count whose task is young: one that has been busy for long will not be free soon.
        """
        with self._lock:
            mean = self._mean_seconds
            if mean is None or mean * 2 > AHEAD_SECONDS:
                return 0
            busy = self._older_than(AHEAD_SECONDS)
        return min(AHEAD_MOST, int((self.slots - busy) * AHEAD_SECONDS / max(mean, 1e-5)))

    def add(self, holds: Iterable[Hold]) -> None:
        with self._lock:
            self._waiting.extend(holds)
            self._fill()

    def left(self, hold: Hold) -> None:
        """A task has left its slot; the next one starts at once, without waiting for the pulse."""
        with self._lock:
            self._leave(hold)
            self._fill()

    def take_back(self, waited_seconds: float = 0.0) -> list[Hold]:
        """Take those out of the line that have waited so long, or were told to stop."""
        limit = time.monotonic() - waited_seconds
        with self._lock:
            taken = [hold for hold in self._waiting if hold.claimed_at <= limit or hold.should_stop()]
            if taken:
                gone = set(taken)
                self._waiting = deque(hold for hold in self._waiting if hold not in gone)
        return taken

    def _fill(self) -> None:
        """Begin what fits; the lock is held."""
        raise NotImplementedError

    def _enter(self) -> Hold:
        hold = self._waiting.popleft()
        self._running[hold] = time.monotonic()
        return hold

    def _leave(self, hold: Hold) -> None:
        took = time.monotonic() - self._running.pop(hold)
        mean = took if self._mean_seconds is None else self._mean_seconds
        self._mean_seconds = mean + WEIGHT_OF_LAST * (took - mean)
        # The mean tells how soon the line moves. It grows with every thread that waits for Python's lock, the
        # median hardly: that one tells whether tasks are short.
        self._median_seconds *= MEDIAN_STEP if took > self._median_seconds else 1 / MEDIAN_STEP

    def _older_than(self, seconds: float) -> int:
        limit = time.monotonic() - seconds
        return sum(since < limit for since in self._running.values())


class LoopLane(Lane):
    """A lane that begins its tasks itself. start: begins one; it must not wait."""

    def __init__(self, slots: int, start: Callable[[Hold], None]) -> None:
        super().__init__(slots)
        self._start = start

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            self._start(self._enter())


class ThreadLane(Lane):
    """
    A lane that the threads take their next task from themselves.

    While tasks are short, one thread works its way along the line as fast as eight that contend for Python's
    lock would not. Another sees to it that no task waits behind a long one while a thread is idle: it looks
    every millisecond, and joins in when the line has not moved.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._news = threading.Condition(self._lock)
        self._idle = 0
        self._lookouts = 0
        self._is_closed = False

    def leave(self, hold: Hold) -> None:
        """A task has left its slot, and its thread will come for another."""
        with self._lock:
            self._leave(hold)

    def go_on(self) -> None:
        """Let others take what waits: the thread that has left its slot does not come yet."""
        with self._lock:
            self._fill()

    def next(self) -> Hold | None:
        """Give the calling thread its next task, waiting for one; None when it may go home."""
        with self._lock:
            while not (self._waiting and self._is_needed()):
                if self._is_closed and not self._waiting:
                    return None
                self._rest()
            hold = self._enter()
            if self._waiting and self._idle and not self._lookouts:
                self._news.notify()
            return hold

    def close(self) -> None:
        """Send the threads home when the line is empty."""
        with self._lock:
            self._is_closed = True
            self._news.notify_all()

    def _fill(self) -> None:
        wanted = min(len(self._waiting), self._idle)
        if wanted:
            self._news.notify(1 if self._are_short() else wanted)

    def _are_short(self) -> bool:
        return self._median_seconds < SHORT_SECONDS

    def _is_needed(self) -> bool:
        """Whether nobody who is at work will take the next task soon."""
        return not self._running or not self._are_short() or self._older_than(LOOKOUT_SECONDS) == len(self._running)

    def _rest(self) -> None:
        self._idle += 1
        if self._waiting:
            self._lookouts += 1
            self._news.wait(LOOKOUT_SECONDS)
            self._lookouts -= 1
        else:
            self._news.wait()
        self._idle -= 1
