"""The lines that the body of a task has logged, as they are shown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import ngettext

from jobqueue.models import Task, TaskLog
from jobqueue.operations.moments import moment_of
from jobqueue.values.body_log import CLAIMS_KEPT, LogLine, read_lines
from jobqueue.values.redaction import Secrets, redact_text

BAD = {logging.getLevelName(level) for level in (logging.ERROR, logging.CRITICAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """A line that the body of a task has logged, as readers see it."""

    at: datetime | None  # None outside the calendar
    level: str  # such as INFO
    logger: str  # its name
    message: str  # redacted

    def __str__(self) -> str:
        clock = "?" if self.at is None else f"{self.at:%H:%M:%S}.{self.at.microsecond // 1000:03}"
        return f"{clock} {self.level} {self.logger}: {self.message}"

    @property
    def is_bad(self) -> bool:
        return self.level in BAD

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ShownLog:
    """The newest lines of an attempt or poll."""

    lines: list[ShownLine]  # oldest first
    dropped: int  # the number of older lines, which are not kept

    @property
    def title(self) -> str:
        return ngettext("Log: %(number)d line", "Log: %(number)d lines", len(self.lines)) % {"number": len(self.lines)}

    @property
    def note(self) -> str:
        """Return what is missing; "" for nothing."""
        if self.dropped <= 0:
            return ""
        text = ngettext(
            "%(number)d earlier line was not kept.", "%(number)d earlier lines were not kept.", self.dropped
        )
        return text % {"number": self.dropped}

    def as_json(self) -> dict[str, Any]:
        return {"lines": [line.as_json() for line in self.lines], "dropped": self.dropped}


def read_logs(database: str, task: Task, patterns: Sequence[str], secrets: Secrets) -> dict[int, ShownLog]:
    """Return the logs of a task by the claim_number of their attempts or polls. Messages are masked like errors."""

    def shown(line: LogLine) -> ShownLine:
        message = redact_text(line.message, patterns, secrets)
        return ShownLine(at=moment_of(line.at), level=line.level, logger=line.logger, message=message)

    rows = TaskLog.objects.using(database).filter(task_id=task.pk).order_by("-claim_number")[:CLAIMS_KEPT]
    return {row.claim_number: ShownLog([*map(shown, read_lines(row.lines))], row.dropped) for row in rows}
