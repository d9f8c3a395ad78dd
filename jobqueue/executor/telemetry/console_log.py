"""The log of `run_executors` where the site has set up none."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, TextIO

from django.core.management.color import Style

from jobqueue.values.text import printable_lines

GAP_SECONDS = 0.01  # between two writes
Event = tuple[str, Mapping[str, Any]]  # a message, and the fields that `extra` gives to a record


class ConsoleHandler(QueueHandler):
    """Let a QueueListener format and write all records in its thread, so that no other waits for the terminal."""

    def __init__(self, formatter: TextFormatter | JsonFormatter, stream: TextIO) -> None:
        super().__init__(SimpleQueue())
        self._formatter = formatter
        self._console = _Console(stream, self.queue)
        self._console.setFormatter(formatter)
        self._listener = QueueListener(self.queue, self._console)
        self._listener.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Queue the record itself. A copy, which only another process needs, costs a tenth of an executor's time."""
        return record

    @property
    def writes_all_records(self) -> bool:
        """False if the site has set a level, or replaced a method."""
        return self.level == logging.NOTSET and vars(self).keys().isdisjoint(("handle", "emit", "enqueue", "prepare"))

    def write_events(self, level: int, logger: str, events: Iterable[Event]) -> None:
        """Write events without making records, which takes most of a line's time. All get the same time."""
        created, name = time.time(), logging.getLevelName(level)
        lines = [self._formatter.format_event(created, name, logger, *event) for event in events]
        self.queue.put_nowait("\n".join(lines))

    def flush(self) -> None:
        """Write all records logged so far."""
        with contextlib.suppress(RuntimeError):  # the end of a program starts no thread
            self._listener.stop()
            self._console.flush()
            self._listener.start()

    def end(self) -> None:
        """Write the rest, and end the thread: the program goes on without this log."""
        self._listener.stop()
        self._console.end()


class _Console(logging.StreamHandler[TextIO]):
    """
    Writes records that come fast together: to wake the thread and to write costs more than to format.

    A task may have closed the stream, and stderr. That must not end the thread.
    """

    def __init__(self, stream: TextIO, queue: Any) -> None:
        super().__init__(stream)
        self._queue = queue

    def handle(self, record: logging.LogRecord | str) -> bool:
        """Write a record, or lines."""
        if not isinstance(record, str):
            return super().handle(record)
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(record + self.terminator)
        self.flush()
        return True

    def flush(self) -> None:
        if self._queue.empty():
            with contextlib.suppress(OSError, ValueError):
                super().flush()
            time.sleep(GAP_SECONDS)

    def end(self) -> None:
        self.flush()
        if self.stream is not sys.stderr:
            with contextlib.suppress(OSError, ValueError):
                self.stream.close()

    def handleError(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handleError(record)


class TextFormatter(logging.Formatter):
    """One line per event, and a traceback where there is one, in the colours of Django's commands."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._second, self._time = 0, ""
        self._paints = {logging.WARNING: style.WARNING, logging.ERROR: style.ERROR, logging.CRITICAL: style.ERROR}

    def formatMessage(self, record: logging.LogRecord) -> str:
        return self.format_event(record.created, record.levelname, record.name, record.message)

    def format_event(self, created: float, level: str, logger: str, message: str, fields: object = None) -> str:
        """Return the line of an event below WARNING, whose message is printable."""
        if (second := int(created)) != self._second:
            self._second, self._time = second, time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(second))
        return f"{self._time} {level:7} {message}"

    def format(self, record: logging.LogRecord) -> str:
        text, paint = super().format(record), self._paints.get(record.levelno)
        text = text if text.isprintable() else printable_lines(text)
        return text if paint is None else paint(text)


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, event, message, traceback, and the fields of `extra`."""

    STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in self.STANDARD}
        if traceback := record.exc_text or (record.exc_info and self.formatException(record.exc_info)):
            fields["traceback"] = traceback
        return self.format_event(record.created, record.levelname, record.name, record.getMessage(), fields)

    def format_event(self, created: float, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        """Return the line of an event."""
        entry = {
            "time": datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "logger": logger,
            "event": message.partition(" ")[0],
            "message": message,
            **fields,
        }
        return json.dumps(entry, default=str)


def copy_of_stderr() -> TextIO:
    """Return a copy of stderr that stays open when a body closes stderr, or stderr itself if it is not a file."""
    try:
        return open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    except (OSError, ValueError, AttributeError):  # replaced by an object, or closed
        return sys.stderr
