"""What bodies log, until the loop writes it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from itertools import count
from uuid import UUID

from jobqueue.body_log import BodyLog, LogLine

WRITE_SECONDS = 1.0  # between two writes
WRITTEN_AT_ONCE = 500  # bodies with new lines, after which they are written sooner


class LogOfBody:
    """
    The newest lines of one attempt or poll, with their numbers. Threads of the body may add lines; see LogLines.

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


class LogLines:
    """
    The logs with lines that are not written yet.

    There is no lock, because a body may be interrupted at any line. The methods of dict and deque that are used here
    are atomic.
    """

    def __init__(self) -> None:
        self._changed: dict[LogOfBody, None] = {}
        self._written_at = float("-inf")  # monotonic

    def add(self, log: LogOfBody, level: str, logger: str, message: str) -> None:
        log.add(level, logger, message)
        self._changed[log] = None

    def take_due(self, *, is_last: bool = False) -> list[LogOfBody]:
        """Take the logs to write now: all of them, about once a second. is_last: at once."""
        if not self._changed:
            return []
        now = time.monotonic()
        if not is_last and now - self._written_at < WRITE_SECONDS and len(self._changed) < WRITTEN_AT_ONCE:
            return []
        self._written_at = now
        logs = list(self._changed)
        for log in logs:
            self._changed.pop(log)
        return logs

    def put_back(self, logs: Iterable[LogOfBody]) -> None:
        """Keep logs that could not be written."""
        self._changed.update(dict.fromkeys(logs))
