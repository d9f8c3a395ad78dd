"""Rows of journals: read, write and delete the recorded calls of workflows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, Q, QuerySet, TextField
from django.db.models.functions import Cast

from jobqueue.engine.database import Part, json_from
from jobqueue.models import JournalEntry
from jobqueue.values.journal import OPEN, Entry, EntryKind, EntryStatus, Journal
from jobqueue.values.records import ClaimedTask
from jobqueue.values.states import Status

KINDS = {kind.value: kind for kind in EntryKind}  # calling EntryKind takes a microsecond
STATUSES = {status.value: status for status in EntryStatus}
TEXTS = ("arguments", "value", "error")  # JSON columns
COLUMNS = (
    "name", "kind", "status", "arguments", "digest", "value", "error", "attempts", "child_id", "started_at",
    "finished_at", "due_at",
)  # fmt: skip
# A cancel waits for them: compensations and shields that are not over; and the workflow that knows of it. Also for the
# next run of a workflow that does not wait: its last run may have ended, with its executor, between a recorded step and
# the compensation of the step.
DEFERS_CANCEL = (
    Q(kind=EntryKind.CANCEL)
    | Q(kind__in=[EntryKind.COMPENSATION, EntryKind.SHIELD], status__in=[*OPEN, EntryStatus.FAILED])
    | ~Q(kind=EntryKind.MEMBER) & ~Q(task__status=Status.SUSPENDED)
)

HAS_RUN = (EntryStatus.RETRYING, EntryStatus.SUCCESSFUL, EntryStatus.FAILED)  # of a compensation


@dataclass(eq=False)
class EntryStatements(Part):
    """The statements that a journal needs. PostgreSQL has its own."""

    @property
    def rows(self) -> QuerySet[JournalEntry]:
        return JournalEntry.objects.using(self.db.using)

    def read(self, task_id: UUID) -> Journal:
        """Return the recorded calls of a task, and whether its cancel was requested. Locks: none."""
        rows = self.of(task_id).order_by("pk")
        rows = rows.annotate(**{f"{name}_text": Cast(name, TextField()) for name in TEXTS})
        columns = [f"{name}_text" if name in TEXTS else name for name in COLUMNS]
        requested = self.db.tasks.filter(pk=task_id, cancel_requested_at__isnull=False)
        return Journal([as_entry(values) for values in rows.values_list(*columns)], requested.exists())

    def record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry]) -> bool | None:
        """
        Write entries of a task while the executor holds its claim.

        Return whether a cancel of the task was requested; None, and write nothing, if the claim is lost.
        Locks: the task's row FOR NO KEY UPDATE. Waits for a rescue of the task.
        """
        with self.db.transaction():
            rows = self.db.lock([claimed.id], wait=True).running()
            held = rows.filter(claim_number=claimed.claim_number, executor_id=executor_id)
            for row in held.only("pk", "cancel_requested_at"):
                self.write({claimed.id: entries})
                return row.cancel_requested_at is not None
        return None

    def record_steps(
        self, executor_id: UUID, records: Sequence[tuple[ClaimedTask, Sequence[Entry]]]
    ) -> dict[UUID, bool]:
        """
        Write entries of several tasks, those that can be written at once.

        Return whether a cancel was requested, by task. Missing: the claim is lost, or another session has locked the
        row. Locks: the tasks' rows FOR NO KEY UPDATE, skipping locked ones.
        """
        asked = {claimed.id: self.record(claimed, executor_id, entries) for claimed, entries in records}
        return {pk: is_requested for pk, is_requested in asked.items() if is_requested is not None}

    def write(self, entries_of: Mapping[UUID, Sequence[Entry]]) -> None:
        """Write entries of tasks that this transaction has locked."""
        now = self.db.now()
        rows = [as_row(task_id, entry, now) for task_id, entries in entries_of.items() for entry in entries]
        self.rows.bulk_create(rows, update_conflicts=True, unique_fields=["task", "name"], update_fields=COLUMNS[1:])

    def forget(self, task_id: UUID, names: Collection[str]) -> None:
        """Delete entries of a task that this transaction has locked."""
        self.rows.filter(task_id=task_id, name__in=names)._raw_delete(self.db.using)

    def delete_of(self, ids: Collection[UUID]) -> None:
        """Delete the journals of tasks that this transaction has locked."""
        self.rows.filter(task_id__in=ids)._raw_delete(self.db.using)

    def of(self, task_id: UUID) -> QuerySet[JournalEntry]:
        """Select the entries of a task. With `=`, PostgreSQL may read the whole table beside a large journal."""
        return self.rows.filter(task_id__gte=task_id, task_id__lte=task_id)

    def delete_some(self, task_id: UUID, limit: int) -> int:
        """Delete entries of a task that has ended. Return how many."""
        ids = list(self.of(task_id).order_by("task_id", "name").values_list("pk", flat=True)[:limit])
        return self.rows.filter(pk__in=ids)._raw_delete(self.db.using) if ids else 0

    def forget_cancels(self, ids: Collection[UUID]) -> None:
        """Let workflows go on that a cancel has ended, unless one of their compensations has run."""
        for pk in ids:
            entries = self.of(pk)
            has_run = entries.filter(kind=EntryKind.COMPENSATION, status__in=HAS_RUN).order_by()
            entries.filter(~Exists(has_run), kind=EntryKind.CANCEL)._raw_delete(self.db.using)

    def that_finish_themselves(self, ids: Collection[UUID]) -> set[UUID]:
        """Return the tasks that end by themselves after a cancel. Locks: none."""
        return set(self.rows.filter(DEFERS_CANCEL, task_id__in=ids).values_list("task_id", flat=True)) if ids else set()


def as_entry(values: Sequence[Any]) -> Entry:
    """Return the value of a row. values: of COLUMNS."""
    fields = dict(zip(COLUMNS, values, strict=True))
    return Entry(**fields | {"kind": KINDS[fields["kind"]], "status": STATUSES[fields["status"]]})


def as_row(task_id: UUID, entry: Entry, now: datetime) -> JournalEntry:
    """Return the row of an entry, with the times that it leaves to the database's clock."""
    columns: dict[str, Any] = {name: getattr(entry, name) for name in COLUMNS}
    columns |= {name: json_from(columns[name]) for name in TEXTS if columns[name] is not None}
    columns["started_at"] = entry.started_at or now - timedelta(seconds=entry.run_seconds)
    if entry.status not in OPEN:
        columns["finished_at"] = entry.finished_at or now
    if entry.due_at is None and entry.due_seconds is not None:
        columns["due_at"] = now + timedelta(seconds=entry.due_seconds)
    return JournalEntry(task_id=task_id, **columns)


def newest(entries: Iterable[Entry]) -> list[Entry]:
    """Return the last entry of each name, in the order of the first: no statement can write a row twice."""
    return list({entry.name: entry for entry in entries}.values())
