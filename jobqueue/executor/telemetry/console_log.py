"""The log of `run_executors` where the site has set up none."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, TextIO

from django.core.management.color import Style

from jobqueue.printable import printable_lines

GAP_SECONDS = 0.01  # between two writes


class ConsoleHandler(QueueHandler):
    """Let one thread write all lines, so that no other thread waits for the terminal."""

    def __init__(self, formatter: logging.Formatter, stream: TextIO) -> None:
        super().__init__(SimpleQueue())
        self.setFormatter(formatter)
        self._stream = stream
        self._writer: _Writer | None = None

    def prepare(self, record: logging.LogRecord) -> str:
        """Format at once: thousands of queued records would keep the garbage collector busy."""
        return self.format(record) + "\n"

    def enqueue(self, line: Any) -> None:
        """Start the thread with the first line. Called with the handler's lock."""
        if self._writer is None:
            self._writer = _Writer(self.queue, self._stream)
            self._writer.start()
        self.queue.put_nowait(line)

    def flush(self) -> None:
        """Write all lines logged so far. The next line starts another thread, which the end of a program refuses."""
        with self.lock or contextlib.nullcontext():
            if self._writer is not None:
                self._writer.stop()
                self._writer = None


class _Writer(QueueListener):
    """Writes lines that come fast together: to wake the thread and to write costs more than to format."""

    def __init__(self, queue: Any, stream: TextIO) -> None:
        super().__init__(queue)
        self._lines, self._stream = queue, stream

    def handle(self, line: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, perhaps by a task
            self._stream.write(line)
            if self._lines.empty():
                self._stream.flush()
                time.sleep(GAP_SECONDS)

    def stop(self) -> None:
        """Write what is left."""
        super().stop()
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class TextFormatter(logging.Formatter):
    """One line per event, and a traceback where there is one, in the colours of Django's commands."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._second, self._time = 0, ""
        self._paints = {logging.WARNING: style.WARNING, logging.ERROR: style.ERROR, logging.CRITICAL: style.ERROR}

    def formatMessage(self, record: logging.LogRecord) -> str:
        if (second := int(record.created)) != self._second:
            self._second, self._time = second, time.strftime("%H:%M:%S", time.localtime(second))
        return f"{self._time} {record.levelname:7} {record.message}"

    def format(self, record: logging.LogRecord) -> str:
        text, paint = super().format(record), self._paints.get(record.levelno)
        text = text if text.isprintable() else printable_lines(text)
        return text if paint is None else paint(text)


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, event, message, traceback, and the fields of `extra`."""

    STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": message.partition(" ")[0],
            "message": message,
            **{name: value for name, value in vars(record).items() if name not in self.STANDARD},
        }
        if traceback := record.exc_text or (record.exc_info and self.formatException(record.exc_info)):
            entry["traceback"] = traceback
        return json.dumps(entry, default=str)


def copy_of_stderr() -> TextIO:
    """Return a copy of stderr that stays open when a body closes stderr, or stderr itself if it is not a file."""
    try:
        return open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    except (OSError, ValueError, AttributeError):  # replaced by an object, or closed
        return sys.stderr
