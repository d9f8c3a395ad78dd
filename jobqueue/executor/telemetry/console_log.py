"""The log of `run_executors` where the site has set up none."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, TextIO

from django.core.management.color import Style

from jobqueue.printable import printable_lines

GAP_SECONDS = 0.01  # between two writes


class ConsoleHandler(QueueHandler):
    """Let one thread format and write all records, so that no other thread waits for the terminal."""

    def __init__(self, formatter: logging.Formatter, stream: TextIO) -> None:
        super().__init__(SimpleQueue())
        self._console_formatter, self._stream = formatter, stream
        self._listener: QueueListener | None = None
        os.register_at_fork(after_in_child=self._forget_thread)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Leave the record as it is: it does not leave the process."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Start the thread with the first record, since a forked child has none. Called with the handler's lock."""
        if self._listener is None:
            writer = _Writer(self._stream, self.queue)
            writer.setFormatter(self._console_formatter)
            listener = QueueListener(self.queue, writer)
            listener.start()
            self._listener = listener
        self.queue.put_nowait(record)

    def flush(self) -> None:
        """Write all records logged so far."""
        self.acquire()
        try:
            if self._listener is not None:
                self._listener.stop()
                self._listener = None
                with contextlib.suppress(OSError, ValueError):  # closed
                    self._stream.flush()
        finally:
            self.release()

    def close(self) -> None:
        self.flush()
        super().close()

    def _forget_thread(self) -> None:
        """Drop what the parent's thread writes."""
        self.queue, self._listener = SimpleQueue(), None


class _Writer(logging.StreamHandler[TextIO]):
    """Write records that come fast together: to wake the thread and to write costs more than to format."""

    def __init__(self, stream: TextIO, queue: Any) -> None:
        super().__init__(stream)
        self._queue = queue

    def flush(self) -> None:
        if self._queue.empty():
            super().flush()
            time.sleep(GAP_SECONDS)

    def handleError(self, record: logging.LogRecord) -> None:
        """Continue even if a task has closed sys.stderr."""
        with contextlib.suppress(ValueError):
            super().handleError(record)


class TextFormatter(logging.Formatter):
    """One line per event, and a traceback where there is one, in the colours of Django's commands."""

    def __init__(self, style: Style) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self._second, self._time = 0, ""
        self._paints = {
            logging.WARNING: style.WARNING,
            logging.ERROR: style.ERROR,
            logging.CRITICAL: style.ERROR,
        }

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if (second := int(record.created)) != self._second:
            self._second, self._time = second, time.strftime("%H:%M:%S", time.localtime(second))
        return self._time

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
