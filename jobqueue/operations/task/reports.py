"""Reports of a task's body as readers see them: progress and log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.models import Task, TaskLog, TaskProgress
from jobqueue.operations.formatting import duration
from jobqueue.operations.payloads import from_timestamp
from jobqueue.values.redaction import Secrets, redact_text
from jobqueue.values.reports import CLAIMS_KEPT, LogLine, parse_lines
from jobqueue.values.text import number_text

BAD = {logging.getLevelName(level) for level in (logging.ERROR, logging.CRITICAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProgress:
    """The progress of a task, as readers see it."""

    done: float  # in the body's own unit
    total: float | None  # in the same unit; None: unknown
    note: str | None  # None if it is hidden from the reader
    reported_at: datetime  # by the database's clock
    is_current: bool  # of the running or the last attempt, not of an earlier one
    left_seconds: float | None  # until the end, if it goes on at the same speed; None: unknown

    @property
    def text(self) -> str:
        """Return it as 450 of 1,000 (45 %), or as 450 if the total is not known."""
        if not self.total:
            return progress_text(self.done)
        values = {
            "done": progress_text(self.done),
            "total": progress_text(self.total),
            "percent": int(100 * self.done / self.total),
        }
        return _("%(done)s of %(total)s (%(percent)d %%)") % values

    @property
    def left(self) -> str:
        if self.left_seconds is None:
            return ""
        return _("About %(time)s left.") % {"time": duration(self.left_seconds)}

    @property
    def bar(self) -> tuple[str, str] | None:
        """Return the value and the maximum of the bar, as HTML wants them; None without a total."""
        return (f"{min(self.done, self.total):.12g}", f"{self.total:.12g}") if self.total else None

    def as_json(self) -> dict[str, Any]:
        names = ("done", "total", "note", "reported_at", "is_current")
        return {name: getattr(self, name) for name in names}


def progress_text(value: float) -> str:
    return number_text(value, ".0f" if value == int(value) else ".2f")


def read_progress(
    database: str, task: Any, patterns: Sequence[str], secrets: Secrets, *, with_payload: bool
) -> ShownProgress | None:
    """Return the progress of a task; None if its body reported none. The note is masked like an error."""
    row = TaskProgress.objects.using(database).filter(pk=task.pk).first()
    if row is None:
        return None
    left = None
    if task.status == Task.Status.RUNNING and row.claim_number == task.claim_number and row.total and row.done > 0:
        since = (row.reported_at - task.last_attempted_at).total_seconds()
        waited = (task.now - row.reported_at).total_seconds()
        left = max(0.0, since * (row.total - row.done) / row.done - waited)
    return ShownProgress(
        done=row.done,
        total=row.total,
        note=redact_text(row.note, patterns, secrets) if with_payload else None,
        reported_at=min(row.reported_at, task.now),  # a report may be newer than the page
        is_current=row.claim_number == task.claim_number,
        left_seconds=left,
    )


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
        """Describe the missing lines; "" if none is missing."""
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

    def show_line(line: LogLine) -> ShownLine:
        message = redact_text(line.message, patterns, secrets)
        return ShownLine(at=from_timestamp(line.at), level=line.level, logger=line.logger, message=message)

    rows = TaskLog.objects.using(database).filter(task_id=task.pk).order_by("-claim_number")[:CLAIMS_KEPT]
    return {row.claim_number: ShownLog([*map(show_line, parse_lines(row.lines))], row.dropped) for row in rows}
