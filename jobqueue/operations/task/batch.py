"""A batch as its page shows it: how many members ended in which way, and why members failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from django.utils.translation import gettext as _

from jobqueue.engine import CAP, Count
from jobqueue.models import Task
from jobqueue.operations.formatting import class_name
from jobqueue.operations.payloads import LastError
from jobqueue.operations.queries import entries_of
from jobqueue.values.batches import BATCH, BatchState
from jobqueue.values.states import FINAL, Status

CAUSES_SHOWN = 10
FAILURES_READ = 2000  # the newest ones, for their causes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCause:
    """Why some members failed."""

    cause: str  # as in the list of failures
    error_class: str  # the name of the exception's class
    number: Count  # of the members


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBatch:
    """The progress of a batch."""

    state: BatchState  # of the actor
    causes: Sequence[MemberCause]  # of the newest failures, the most frequent one first

    @property
    def ended(self) -> int:
        return self.state.total - self.state.running

    @property
    def percent(self) -> int:
        return int(100 * self.ended / self.state.total) if self.state.total else 0

    @property
    def wait(self) -> str:
        """Say what the batch waits for."""
        return _("Waits for %(running)d of %(total)d members.") % {
            "running": self.state.running,
            "total": self.state.total,
        }

    @property
    def numbers(self) -> list[tuple[str, int]]:
        """The numbers of the members by final status."""
        numbers = (self.state.successful, self.state.failed, self.state.cancelled)
        return [(status, number) for status, number in zip(FINAL, numbers, strict=True) if number]


def read_batch(database: str, task: Task, state: Any, kwargs: Any) -> ShownBatch | None:
    """Return the progress of a batch; None for other tasks. It reads the causes of FAILURES_READ members at most."""
    if task.task_type != BATCH:
        return None
    members = kwargs.get("members") if isinstance(kwargs, dict) else 0
    try:
        batch = msgspec.convert(state if isinstance(state, dict) else {"total": members}, BatchState)
    except msgspec.ValidationError:  # of newer code
        batch = BatchState()
    entries = entries_of(database, task.pk).order_by("-task_id", "-name")
    newest = entries.values_list("child_id", "status")[:CAP] if batch.failed else ()
    failed = [pk for pk, status in newest if pk is not None and status == Status.FAILED][:FAILURES_READ]
    rows = Task.objects.using(database).filter(pk__in=failed, status=Status.FAILED, cause__isnull=False)
    classes = rows.annotate(error_class=LastError("errors", member="exception_class_path"))
    counts = Counter(classes.values_list("cause", "error_class")) if failed else Counter[tuple[Any, Any]]()
    return ShownBatch(
        state=batch,
        causes=[
            MemberCause(
                cause=cause or "",
                error_class=class_name({"exception_class_path": path}),
                number=Count(number, is_more=batch.failed > len(failed)),
            )
            for (cause, path), number in counts.most_common(CAUSES_SHOWN)
        ],
    )
