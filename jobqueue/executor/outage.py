"""One word in the log when the database goes away, one when it is back."""

from __future__ import annotations

import logging
import random
import threading
import time

from django.db import connections

logger = logging.getLogger("jobqueue.executor")

FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 5.0


class Outage:
    """What the process's threads know together of the database being away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._down: set[str] = set()

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begin(self, who: str, error: Exception) -> None:
        with self._lock:
            self._down.add(who)
            if self._since is None:
                self._since = time.monotonic()
                logger.warning("database.away, trying again until it is back: %s", first_line(error))

    def end(self, who: str) -> None:
        if self._since is None:
            return
        with self._lock:
            self._down.discard(who)
            if self._since is not None and not self._down:
                logger.warning("database.back after %.1f s", time.monotonic() - self._since)
                self._since = None


class Patience:
    """How long to wait before the next try: exponential from 50 ms to 5 s, with jitter."""

    def __init__(self, longest_seconds: float = LONGEST_WAIT_SECONDS) -> None:
        self._longest = longest_seconds
        self._tries = 0

    def next_seconds(self) -> float:
        wait = min(self._longest, FIRST_WAIT_SECONDS * 2.0 ** min(self._tries, 20))
        self._tries += 1
        return wait * random.uniform(0.75, 1.0)

    def reset(self) -> None:
        self._tries = 0


class Line:
    """
    The database connection of one of the executor's own threads, and a limit on how long it may hang.

    A network that swallows packets leaves a call waiting for ever: keepalives and statement_timeout
    do not help, closing the connection from another thread does.
    """

    def __init__(self, name: str, database: str, limit_seconds: float) -> None:
        self.name = name
        self.database = database
        self.limit_seconds = limit_seconds
        self._busy: tuple[float, object] | None = None

    def __enter__(self) -> Line:
        self._busy = (time.monotonic(), connections[self.database])
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._busy = None

    def drop(self) -> None:
        """Close this thread's connection; the next call opens a new one."""
        wrapper = connections[self.database]
        try:
            wrapper.close()
        except Exception:  # whatever state it was in, it is not used again
            wrapper.connection = None

    def cut_if_hung(self) -> bool:
        """From the watchdog's thread: close a connection that has been silent for too long."""
        busy = self._busy
        if busy is None or time.monotonic() - busy[0] < self.limit_seconds:
            return False
        raw = getattr(busy[1], "connection", None)
        close = getattr(raw, "close", None)
        if close is None:
            return False
        self._busy = (time.monotonic(), busy[1])
        logger.error(
            "database.hung %s waited %.0f s for an answer; closing its connection",
            self.name,
            self.limit_seconds,
        )
        try:
            close()
        except Exception as error:  # SQLite refuses to be closed from here, and does not hang on a network
            logger.debug("database.hung %s: %s", self.name, first_line(error))
        return True


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
