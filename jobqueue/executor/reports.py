"""Reports of bodies: progress, and the lines that they log. Both are kept until the loop writes them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from uuid import UUID

import django.db

from jobqueue.conf.options import Options
from jobqueue.engine import Engine
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger, mask_for
from jobqueue.values.records import ClaimedTask
from jobqueue.values.reports import MESSAGE_CHARACTERS, NAME_CHARACTERS, BodyLog, LogLine, Progress
from jobqueue.values.text import printable

logger = get_logger(__name__)
OURS = "jobqueue"  # and the loggers below it; their lines are not those of a body

WRITE_SECONDS = 1.0  # between two writes
MAX_LOGS = 10_000  # of bodies, while the database does not take them
WRITTEN_AT_ONCE = 500  # bodies with new lines, after which they are written sooner


class LogOfBody:
    """
    The newest lines of one attempt or poll, with their numbers. Threads of the body may add lines; see PendingReports.

    since: the moment of its claim, of time.monotonic().
    """

    def __init__(self, claimed: ClaimedTask, options: Options, since: float) -> None:
        self._task_id, self._claim_number = claimed.id, claimed.claim_number
        self._offset = claimed.claimed_at.timestamp() - since  # so the lines have the database's time
        self._mask = mask_for(claimed, options)
        self._lines: deque[tuple[int, LogLine]] = deque(maxlen=options.keep_log_lines)
        self._numbers = count(1)

    def add(self, record: logging.LogRecord) -> None:
        """Add the message of a record, and its exception, as one line."""
        message = format_message(record)
        if record.exc_info and (error := record.exc_info[1]) is not None:
            message = f"{message} {format_first_line(error)}".lstrip()
        if len(message) > MESSAGE_CHARACTERS:  # half a secret would not be found when the line is shown
            message = self._mask(message)[:MESSAGE_CHARACTERS]
        line = LogLine(
            at=round(self._offset + time.monotonic(), 3),
            level=printable(record.levelname)[:NAME_CHARACTERS],
            logger=printable(record.name)[:NAME_CHARACTERS],
            message=printable(message)[:MESSAGE_CHARACTERS],
        )
        self._lines.append((next(self._numbers), line))

    def copy(self) -> BodyLog:
        """Return a copy of the reports to write now."""
        lines = self._lines.copy()
        dropped = max((number for number, _ in lines), default=0) - len(lines)
        return BodyLog(
            task_id=self._task_id,
            claim_number=self._claim_number,
            dropped=dropped,
            lines=[line for _, line in lines],
        )


class PendingReports:
    """
    The latest progress of each task, and the logs with new lines.

    Any thread may add some. There is no lock, because a body may be interrupted at any line. The methods of dict and
    deque that are used here are atomic.
    """

    def __init__(self) -> None:
        self._progress: dict[UUID, Progress] = {}
        self._logs: dict[LogOfBody, None] = {}
        self._written_at = float("-inf")  # monotonic

    def add_progress(self, progress: Progress) -> None:
        self._progress[progress.task_id] = progress

    def add_line(self, log: LogOfBody, record: logging.LogRecord) -> None:
        log.add(record)
        self._logs[log] = None

    def __bool__(self) -> bool:
        return bool(self._progress or self._logs)

    def write(
        self, engine: Engine, ended: Collection[UUID] = (), *, is_last: bool = False, limit: int = MAX_LOGS
    ) -> None:
        """
        Write all once a second, or sooner after many logs; the progress of tasks that have ended, at once.

        is_last: write all. limit: of each kind in one write. Raises django.db.Error, and keeps what it did not write
        then, behind the others. Of more than MAX_LOGS logs, the oldest are dropped.
        """
        if not self:
            return
        now = time.monotonic()
        writes_all = is_last or now - self._written_at >= WRITE_SECONDS or len(self._logs) >= WRITTEN_AT_ONCE
        self._written_at = now if writes_all else self._written_at
        ids = list(self._progress) if writes_all else ended
        progress = [report for pk in islice(ids, limit) if (report := self._progress.pop(pk, None)) is not None]
        logs = list(self._logs)[:limit] if writes_all else []
        for log in logs:
            self._logs.pop(log)
        try:
            engine.reports.write(progress, [log.copy() for log in logs])
        except django.db.Error:
            for report in progress:
                self._progress.setdefault(report.task_id, report)  # unless there is a newer one
            self._logs.update(dict.fromkeys(logs))
            self._drop_oldest()
            raise

    def _drop_oldest(self) -> None:
        if (surplus := len(self._logs) - MAX_LOGS) > 0:
            for log in list(self._logs)[:surplus]:
                self._logs.pop(log, None)
            logger.warning("log_lines.dropped tasks=%d hint=The database did not take them in time.", surplus)


class BodyLogHandler(logging.Handler):
    """Keeps what the bodies of one executor log at INFO or above. log_of_caller: None if no body of it calls."""

    def __init__(self, reports: PendingReports, log_of_caller: Callable[[], LogOfBody | None]) -> None:
        super().__init__(logging.INFO)
        self._reports, self._log_of_caller = reports, log_of_caller

    def handle(self, record: logging.LogRecord) -> bool:
        """
        Keep a record of a body. Raises nothing but an interruption of the body.

        Takes no lock, unlike the method of the base class: an interruption may arrive at any line here.
        """
        if record.name.partition(".")[0] != OURS and (log := self._log_of_caller()) is not None:
            with suppress(Exception):  # a record may hold anything
                self._reports.add_line(log, record)
        if logging.root.handlers == [self]:
            handle_as_without(self, record)
        return True


def format_message(record: logging.LogRecord) -> str:
    """Return the message; without its arguments, if they do not fit. Other handlers report their error."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - the arguments may raise anything
        return str(record.msg)


def handle_as_without(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Print a record where the site has no handler for it, as Python does if there is none at all."""
    logger = logging.root.manager.loggerDict.get(record.name)
    while isinstance(logger, logging.Logger):
        if any(other is not handler for other in logger.handlers):
            return
        logger = logger.parent
    if (last := logging.lastResort) is not None and record.levelno >= last.level:
        last.handle(record)


@contextmanager
def keeping_body_logs(reports: PendingReports, log_of_caller: Callable[[], LogOfBody | None]) -> Iterator[None]:
    """Keep what the bodies of an executor log, by a handler on the root logger."""
    handler = BodyLogHandler(reports, log_of_caller)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
