"""Keep the progress and the log lines of bodies until the loop writes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from itertools import count, islice
from uuid import UUID

import django.db

from jobqueue.engine import Engine
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.body_log import BodyLog, LogLine
from jobqueue.values.records import Progress

logger = get_logger(__name__)

WRITE_SECONDS = 1.0  # between two writes
MAX_LOGS = 10_000  # of bodies, while the database does not take them
WRITTEN_AT_ONCE = 500  # bodies with new lines, after which they are written sooner


class LogOfBody:
    """
    The newest lines of one attempt or poll, with their numbers. Threads of the body may add lines; see Reports.

    claimed_at: on the database's clock, in seconds since 1970. since: the same moment of time.monotonic().
    """

    def __init__(self, task_id: UUID, claim_number: int, kept: int, claimed_at: float, since: float) -> None:
        self._task_id, self._claim_number, self._offset = task_id, claim_number, claimed_at - since
        self._lines: deque[tuple[int, LogLine]] = deque(maxlen=kept)
        self._numbers = count(1)

    def add(self, level: str, logger: str, message: str) -> None:
        line = LogLine(at=round(self._offset + time.monotonic(), 3), level=level, logger=logger, message=message)
        self._lines.append((next(self._numbers), line))

    def copy(self) -> BodyLog:
        """Return what is to be written now."""
        lines = self._lines.copy()
        dropped = max((number for number, _ in lines), default=0) - len(lines)
        return BodyLog(
            task_id=self._task_id,
            claim_number=self._claim_number,
            dropped=dropped,
            lines=[line for _, line in lines],
        )


class Reports:
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

    def add_line(self, log: LogOfBody, level: str, logger: str, message: str) -> None:
        log.add(level, logger, message)
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
        progress = [found for pk in islice(ids, limit) if (found := self._progress.pop(pk, None)) is not None]
        logs = list(self._logs)[:limit] if writes_all else []
        for log in logs:
            self._logs.pop(log)
        try:
            engine.progress.write_progress(progress)
            engine.logs.write_logs([log.copy() for log in logs])
        except django.db.Error:
            for found in progress:
                self._progress.setdefault(found.task_id, found)  # unless there is a newer one
            self._logs.update(dict.fromkeys(logs))
            self._drop_oldest()
            raise

    def _drop_oldest(self) -> None:
        if (surplus := len(self._logs) - MAX_LOGS) > 0:
            for log in list(self._logs)[:surplus]:
                self._logs.pop(log, None)
            logger.warning("log_lines.dropped tasks=%d hint=The database did not take them in time.", surplus)
