"""Cancel: live tasks end by hand, at once or as soon as their executor hears of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Coalesce

from jobqueue.engine.clock import Clock
from jobqueue.engine.portable.database import Database, Part
from jobqueue.engine.portable.messages import Ending, Messages
from jobqueue.models import Task
from jobqueue.records import FINAL, CancelReport, Status

PARENTS_PER_LOOK = 1000  # whose children one statement looks for
# What cancelling looks at, and whoever says what may be cancelled.
CANCEL_COLUMNS = (
    "pk", "status", "parent_id", "parent_notified_at", "cancel_requested_at", "backend", "task_type", "queue_name"
)  # fmt: skip


@dataclass(slots=True)
class LockedRow:
    """What a commit reads of a locked row. Making a model with deferred fields takes several times as long."""

    pk: UUID
    status: str
    claim_number: int
    cancel_requested_at: datetime | None
    parent_id: UUID | None
    parent_notified_at: datetime | None
    executor_id: UUID | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of locked rows: ended, or told; and the parents that were told of an end."""

    ended: frozenset[UUID]
    asked: frozenset[UUID]
    parents: frozenset[UUID]


class Canceller(Part):
    def __init__(self, db: Database, messages: Messages) -> None:
        super().__init__(db)
        self.messages = messages

    def cancel(
        self,
        ids: Collection[UUID],
        *,
        tree: bool = False,
        wait: bool = True,
        may: Callable[[Task], bool] | None = None,
    ) -> CancelReport:
        """
        Cancel live tasks: queued ones end at once, running ones are told at the next heartbeat.

        tree: their living children, and theirs, go along; one that was told before is not counted again. may: says of
        each whether it may be cancelled; one that may not is `left`, and its own children are asked for nevertheless.
        `parents` of the answer are to be woken after the commit. Locks: the rows in id order; those that
        somebody else holds are left `busy` unless `wait`.
        """
        named = set(ids)
        with self.db.transaction():
            everyone = named | self.descendants(named) if tree else named
            rows = list(self.db.lock(everyone, wait=wait).only(*CANCEL_COLUMNS))
            # A commit we waited for may have spawned; the ids of its children are later ones, so the order stays.
            while tree and (born := self.descendants(named) - everyone):
                everyone |= born
                rows += self.db.lock(born, wait=wait).only(*CANCEL_COLUMNS)
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(everyone, rows)
            told_before = {row.pk for row in rows if row.cancel_requested_at is not None} - named
            left = frozenset(row.pk for row in rows if may is not None and row.status not in FINAL and not may(row))
            done = self.cancel_locked([row for row in rows if row.pk not in left])
        return CancelReport(
            cancelled=len(done.ended),
            requested=len(done.asked - told_before),
            skipped=len(named - done.ended - done.asked - busy - left),
            parents=done.parents,
            busy=busy,
            left=left,
        )

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        """Give the living tasks below these: their children and theirs, also below those that have ended."""
        living: set[UUID] = set()
        seen: set[UUID] = set()
        above = list(ids)
        while above:
            some, above = above[:PARENTS_PER_LOOK], above[PARENTS_PER_LOOK:]
            below = dict(self.db.tasks.filter(parent_id__in=some).values_list("pk", "finished_at"))
            living |= {pk for pk, finished_at in below.items() if finished_at is None}
            above += below.keys() - seen
            seen |= below.keys()
        return living

    def cancel_locked(self, rows: Iterable[Task | LockedRow]) -> Cancelled:
        """End locked rows that nobody runs, tell the executors of the others."""
        live = {row.pk: row for row in rows if row.status not in FINAL}
        running = {pk for pk, row in live.items() if row.status == Status.RUNNING}
        queued = live.keys() - running
        self.cancel_queued(queued)
        if running:
            self.db.tasks.filter(pk__in=running).update(cancel_requested_at=Coalesce("cancel_requested_at", Clock()))
        ends = [
            Ending(pk, parent_id, Status.CANCELLED, None)
            for pk in queued
            if (parent_id := live[pk].parent_id) is not None and live[pk].parent_notified_at is None
        ]
        return Cancelled(frozenset(queued), frozenset(running), frozenset(self.messages.report_ends(ends)))

    def cancel_queued(self, ids: Collection[UUID]) -> None:
        """End tasks that are locked, or that nobody else sees yet."""
        if ids:
            self.db.tasks.filter(pk__in=ids).update(
                status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock(), wake_at=None
            )
