"""The progress that the body of a task has reported, as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from jobqueue.models import Task, TaskProgress
from jobqueue.operations.formatting import duration, number_text
from jobqueue.values.redaction import Secrets, redact_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProgress:
    """
    note: None if it is hidden from the reader. is_current: of the running or the last attempt, not of an earlier one.

    left_seconds: until the end, if it goes on at the same speed.
    """

    done: float
    total: float | None
    note: str | None
    reported_at: datetime
    is_current: bool
    left_seconds: float | None

    @property
    def words(self) -> str:
        """Return it as 450 of 1,000 (45 %), or as 450 if the total is not known."""
        if not self.total:
            return number(self.done)
        values = {"done": number(self.done), "total": number(self.total), "percent": int(100 * self.done / self.total)}
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


def number(value: float) -> str:
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
