"""Cancel: live tasks end on request, at once or as soon as their executor reads the request."""

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

PARENTS_PER_QUERY = 1000
# What cancel() and its `may` read of a task.
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
    """Locked rows that were cancelled or whose executors were asked to cancel, and the parents that got a message."""

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
        Cancel live tasks. Queued tasks end at once, running tasks at the next heartbeat of their executor.

        tree: cancel all live descendants, too. A descendant that was asked before is not counted again. may: whether
        a task may be cancelled. If not, the task is `left`; its descendants are asked for nevertheless. The caller
        wakes `parents` of the answer after the commit. Locks: the rows in id order. Rows locked by other sessions
        are `busy` unless `wait`.
        """
        named = set(ids)
        with self.db.transaction():
            everyone = named | self.descendants(named) if tree else named
            rows = list(self.db.lock(everyone, wait=wait).only(*CANCEL_COLUMNS))
            # A commit that held a lock may have spawned children. Their ids are later, so the order of locks holds.
            while tree and (born := self.descendants(named) - everyone):
                everyone |= born
                rows += self.db.lock(born, wait=wait).only(*CANCEL_COLUMNS)
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(everyone, rows)
            asked_before = {row.pk for row in rows if row.cancel_requested_at is not None} - named
            left = frozenset(row.pk for row in rows if may is not None and row.status not in FINAL and not may(row))
            done = self.cancel_locked([row for row in rows if row.pk not in left])
        return CancelReport(
            cancelled=len(done.ended),
            requested=len(done.asked - asked_before),
            skipped=len(named - done.ended - done.asked - busy - left),
            parents=done.parents,
            busy=busy,
            not_allowed=left,
        )

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        """Return the live descendants of these tasks, also below tasks that have ended."""
        living: set[UUID] = set()
        seen: set[UUID] = set()
        above = list(ids)
        while above:
            some, above = above[:PARENTS_PER_QUERY], above[PARENTS_PER_QUERY:]
            below = dict(self.db.tasks.filter(parent_id__in=some).values_list("pk", "finished_at"))
            living |= {pk for pk, finished_at in below.items() if finished_at is None}
            above += below.keys() - seen
            seen |= below.keys()
        return living

    def cancel_locked(self, rows: Iterable[Task | LockedRow]) -> Cancelled:
        """End the locked rows that are not RUNNING, and ask the executors of the others."""
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
        """End tasks that are locked, or that this transaction has inserted."""
        if ids:
            self.db.tasks.filter(pk__in=ids).update(
                status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock(), wake_at=None
            )
