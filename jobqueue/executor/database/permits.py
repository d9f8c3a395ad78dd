"""Permits that bound how many async bodies have database connections at once."""

from __future__ import annotations

import threading
import time

from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

PATIENCE_SECONDS = 5.0  # after which a body that waits no longer counts connections that rest
# Without an end, after which some connections that are in use do not count either. Nearly all queries take less time,
# and the server may lack a connection that is beyond the limit.
STUCK_SECONDS = 30.0
CHECK_SECONDS = 0.5
QUIET_SECONDS = 60.0  # between two lines about a shortage


class Permit:
    """
    The right of one body to have connections.

    is_resting: it makes no call now, so it may wait for other tasks. is_stuck: it may wait for them within its call.
    """

    __slots__ = ("is_resting", "is_stuck")

    def __init__(self) -> None:
        self.is_resting = self.is_stuck = False


class Permits:
    """
    Limits how many async bodies have connections at once. A body keeps its connections, and its session, to its end.

    If 32 bodies wait for other tasks, which need connections too, then nothing would ever move. So a body that has
    waited for PATIENCE_SECONDS counts only the others that make a call now.

    A body may also wait for a task within a call. This looks like a slow query. So after each STUCK_SECONDS
    in which a body has waited and none has ended, the oldest 1, 2, 4 and so on that make a call do not count any more.
    Once no body waits, that begins with 1 again.
    There are never more permits than running bodies, which the slots limit. Any thread may call the methods.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._permits: dict[Permit, None] = {}  # the oldest first
        self._waiting = self._max_waiting = 0
        self._moved_at = float("-inf")  # monotonic: when a body has ended, or some have become stuck
        self._next_stuck = 1
        self._changed = threading.Condition()
        self._logged_at: float | None = None

    def acquire(self) -> Permit:
        """Wait for a permit."""
        permit = Permit()
        with self._changed:
            if len(self._permits) >= self._limit:
                self._wait()
            self._permits[permit] = None
        return permit

    def release(self, permit: Permit) -> None:
        with self._changed:
            del self._permits[permit]
            self._moved_at = time.monotonic()
            self._changed.notify()

    def take_waiting(self) -> int:
        """Return how many bodies, at most, have waited at once since the last call. A short wait does not count."""
        with self._changed:
            waiting, self._max_waiting = self._max_waiting, 0
        return waiting

    def _wait(self) -> None:
        began = time.monotonic()
        self._waiting += 1
        try:
            while not self._has_place(began):
                self._changed.wait(CHECK_SECONDS)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._next_stuck = 1

    def _has_place(self, began: float) -> bool:
        """Return whether a body that has waited since then may have connections."""
        counted = [permit for permit in self._permits if not permit.is_stuck]
        if len(counted) < self._limit:
            return True
        active, now = [permit for permit in counted if not permit.is_resting], time.monotonic()
        resting = len(counted) - len(active)
        if now - max(began, self._moved_at) >= STUCK_SECONDS:
            for permit in active[: self._next_stuck]:
                permit.is_stuck = True
            active = active[self._next_stuck :]
            self._moved_at, self._next_stuck = now, 2 * self._next_stuck
        if now - began < PATIENCE_SECONDS:
            return False
        self._max_waiting = max(self._max_waiting, self._waiting)
        self._report(resting)
        return len(active) < self._limit

    def _report(self, resting: int) -> None:
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < QUIET_SECONDS:
            return
        self._logged_at = now
        logger.warning(
            "connections.exhausted tasks=%d resting=%d waiting=%d hint=Async tasks keep their connections while they "
            "wait for something else. For each that rests, one that waits gets connections beyond the limit of %d. So "
            "do some after each %d s in which none has ended.",
            len(self._permits),
            resting,
            self._waiting,
            self._limit,
            STUCK_SECONDS,
        )
