"""How many async bodies have database connections at once."""

from __future__ import annotations

import threading
import time

from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

PATIENCE_SECONDS = 5.0  # after which a body that waits no longer counts connections that rest
CHECK_SECONDS = 0.5
QUIET_SECONDS = 60.0  # between two lines about a shortage


class Permit:
    """The right of one body to have connections. is_resting: it makes no call now, so it may wait for other tasks."""

    __slots__ = ("is_resting",)

    def __init__(self) -> None:
        self.is_resting = False


class Permits:
    """
    Limits how many async bodies have connections at once. A body keeps its connections, and its session, to its end.

    If 32 bodies wait for other tasks, which need connections too, then nothing would ever move. So a body that has
    waited for PATIENCE_SECONDS counts only the others that make a call now. Any thread may call the methods.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._permits: set[Permit] = set()
        self._waiting = 0
        self._changed = threading.Condition()
        self._logged_at: float | None = None

    def acquire(self) -> Permit:
        """Wait for a permit."""
        permit = Permit()
        with self._changed:
            if len(self._permits) >= self._limit:
                self._wait()
            self._permits.add(permit)
        return permit

    def release(self, permit: Permit) -> None:
        with self._changed:
            self._permits.discard(permit)
            self._changed.notify()

    def _wait(self) -> None:
        patient_until = time.monotonic() + PATIENCE_SECONDS
        self._waiting += 1
        try:
            while len(self._permits) >= self._limit:
                if time.monotonic() >= patient_until:
                    resting = sum(permit.is_resting for permit in self._permits)
                    self._report(resting)
                    if len(self._permits) - resting < self._limit:
                        return
                self._changed.wait(CHECK_SECONDS)
        finally:
            self._waiting -= 1

    def _report(self, resting: int) -> None:
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < QUIET_SECONDS:
            return
        self._logged_at = now
        logger.warning(
            "connections.exhausted tasks=%d resting=%d waiting=%d hint=Async tasks keep their connections while they "
            "wait for something else. For each that rests, one that waits gets connections beyond the limit of %d.",
            len(self._permits),
            resting,
            self._waiting,
            self._limit,
        )
