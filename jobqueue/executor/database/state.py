"""Whether the database is reachable, as all threads of the process see it."""

from __future__ import annotations

import threading
import time

from jobqueue.executor.telemetry.errors import first_line_of
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)


class DatabaseState:
    """
    Whether the database is reachable. One line in the log when it becomes unreachable, one when all threads are back.

    A thread that asks rarely finds its connection dead after the others have reconnected. That is the end of the same
    outage, and is not logged again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._down: set[str] = set()
        self._last_over_at = float("-inf")
        self.last_away_at = float("-inf")  # monotonic: when a thread last found that its connection was gone
        self._last_good_at: dict[str, float] = {}

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begin(self, who: str, error: Exception) -> None:
        with self._lock:
            self.last_away_at = now = time.monotonic()
            if self._since is None and self._last_good_at.get(who, now) < self._last_over_at:
                self._last_good_at[who] = now
                logger.debug("database.reconnected connection=%s error=%s", who, first_line_of(error))
                return
            self._down.add(who)
            if self._since is None:
                self._since = now
                logger.warning("database.unreachable error=%s", first_line_of(error))

    def end(self, who: str) -> None:
        self._last_good_at[who] = time.monotonic()
        if self._since is None:
            return
        with self._lock:
            self._down.discard(who)
            if self._since is not None and not self._down:
                self._last_over_at = time.monotonic()
                logger.warning("database.reconnected after_s=%.1f", self._last_over_at - self._since)
                self._since = None
