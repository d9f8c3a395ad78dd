"""The log of `run_executors`, where the site has set up none."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from django.core.management.color import Style

GAP_SECONDS = 0.01  # between two writes


class Scribe(logging.StreamHandler):  # type: ignore[type-arg]
    """
    Writes lines together that come fast, warnings and what came before them at once.

    Each write lets go of Python's lock, for which the other threads wait, and whoever formats under the handler's
    lock keeps them all waiting: with two lines per task, one of 45 us took 160.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines: deque[str] = deque()
        self._next_at = 0.0
        self._timer: threading.Timer | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Format outside of the lock."""
        is_wanted = self.filter(record)
        if is_wanted:
            self.emit(record)
        return bool(is_wanted)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + self.terminator)
            now = time.monotonic()
            if record.levelno >= logging.WARNING or now >= self._next_at:
                self._next_at = now + GAP_SECONDS
                self.flush()
            elif self._timer is None or not self._timer.is_alive():  # a fork leaves the timer behind
                self._timer = threading.Timer(GAP_SECONDS, self.flush)
                self._timer.daemon = True
                self._timer.start()
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def flush(self) -> None:
        """Write what was said so far."""
        with self.lock or threading.Lock():
            if lines := [self._lines.popleft() for _ in range(len(self._lines))]:
                self.stream.write("".join(lines))
            super().flush()


class Lines(logging.Formatter):
    """One line per event, in the colours that Django's commands have."""

    def __init__(self, style: Style) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self._second, self._time = 0, ""
        self._paints = {
            logging.WARNING: style.WARNING,
            logging.ERROR: style.ERROR,
            logging.CRITICAL: style.ERROR,
        }

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, time.strftime("%H:%M:%S", time.localtime(second))
        return self._time

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        paint = self._paints.get(record.levelno)
        return text if paint is None else paint(text)
