"""The log of `run_executors`, where the site has set up none."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from django.core.management.color import Style

from jobqueue.executor.log import ExecutorLogger
from jobqueue.printable import printable, printable_lines

GAP_SECONDS = 0.01  # between two writes


def say(
    logger: ExecutorLogger, level: int, template: str, *args: object, extra: Callable[[], Mapping[str, Any]]
) -> None:
    """
    Log as logger.log() does, what is enabled; where a Scribe alone hears it, without a record and its `extra`.

    Creating the record took 20 of the 26 us of a line. Names and errors in args come from outside, so every handler
    gets them as one line.
    """
    if (scribe := only_hearer(logger.logger)) is not None and level >= scribe.level:
        scribe.say(level, printable(template % args))
    else:
        args = tuple(printable(arg) if isinstance(arg, str) else arg for arg in args)
        logger.log(level, template, *args, extra=extra(), stacklevel=2)


def only_hearer(logger: logging.Logger) -> Scribe | None:
    """Give the one handler of all that this logger says, where it is a Scribe and nobody filters or makes records."""
    if logger.filters or logging.getLogRecordFactory() is not logging.LogRecord:
        return None
    found: Scribe | None = None
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            if found is not None or not isinstance(handler, Scribe) or handler.filters:
                return None
            found = handler
        at = at.parent if at.propagate else None
    return found


class Scribe(logging.StreamHandler):  # type: ignore[type-arg]
    """
    Writes lines together that come fast, warnings and what came before them at once.

    Each write lets go of Python's lock, for which the other threads wait, and whoever formats under the handler's
    lock keeps them all waiting: with two lines per task, one of 45 us took 160.
    """

    def __init__(self, lines: Lines, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self._format_line = lines.line
        self._lines: deque[str] = deque()
        self._next_at = 0.0
        self._is_due = False  # lines wait for the flusher
        self._due, self._over = threading.Event(), threading.Event()
        self._flusher: threading.Thread | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Format outside of the lock."""
        is_wanted = self.filter(record)
        if is_wanted:
            self.emit(record)
        return bool(is_wanted)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(record.levelno, self.format(record))
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def say(self, level: int, message: str) -> None:
        """Write a line for which there is no record."""
        try:
            self._put(level, self._format_line(time.time(), level, message))
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(logging.makeLogRecord({"levelno": level, "msg": message}))

    def _put(self, level: int, line: str) -> None:
        self._lines.append(line + self.terminator)
        now = time.monotonic()
        if level >= logging.WARNING or now >= self._next_at:
            self._next_at = now + GAP_SECONDS
            self.flush()
        elif not self._is_due or self._flusher is None or not self._flusher.is_alive():  # a fork leaves it behind
            self._is_due = True
            self._remind()

    def _remind(self) -> None:
        """Write soon, in one thread for all: to start one for each time took a fifth of what a task of 100 ms took."""
        if self._flusher is None or not self._flusher.is_alive():
            self._due = threading.Event()
            self._flusher = threading.Thread(target=self._flush_when_due, name="scribe", daemon=True)
            self._flusher.start()
        self._due.set()

    def _flush_when_due(self) -> None:
        while not self._over.is_set():
            self._due.wait()
            self._due.clear()
            self._over.wait(GAP_SECONDS)
            self._is_due = False
            self.flush()

    def close(self) -> None:
        self._over.set()
        self._due.set()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Complain where that is heard: a stream that a task has closed must end no thread of ours."""
        with contextlib.suppress(ValueError):
            super().handleError(record)

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

    def line(self, created: float, level: int, message: str) -> str:
        """Give what format() gives for a record of these."""
        return self._painted(level, f"{self._time_of(created)} {logging.getLevelName(level):7} {message}")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return self._time_of(record.created)

    def format(self, record: logging.LogRecord) -> str:
        return self._painted(record.levelno, printable_lines(super().format(record)))

    def _time_of(self, created: float) -> str:
        second = int(created)
        if second != self._second:
            self._second, self._time = second, time.strftime("%H:%M:%S", time.localtime(second))
        return self._time

    def _painted(self, level: int, text: str) -> str:
        paint = self._paints.get(level)
        return text if paint is None else paint(text)
