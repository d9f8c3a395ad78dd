"""Cancel: queued tasks end at once, running tasks when their executor reads the request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Coalesce

from jobqueue.engine.clock import Clock
from jobqueue.engine.portable.database import Database, Part
from jobqueue.engine.portable.messages import Messages, ending_of
from jobqueue.models import Task
from jobqueue.records import FINAL, CancelReport, Status

PARENTS_PER_QUERY = 1000
# For cancel() and its `may`.
CANCEL_COLUMNS = (
    "pk", "status", "parent_id", "parent_notified_at", "cancel_requested_at", "backend", "task_type", "queue_name"
)  # fmt: skip


@dataclass(slots=True)
class LockedRow:
    """Columns of a locked row. A model with deferred fields takes several times as long to build."""

    pk: UUID
    status: str
    claim_number: int
    cancel_requested_at: datetime | None
    parent_id: UUID | None
    parent_notified_at: datetime | None
    executor_id: UUID | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Tasks that ended, running tasks with a request to cancel, and the parents that got a message."""

    ended: frozenset[UUID]
    running: frozenset[UUID]
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

        tree: cancel all live descendants, too. A descendant with an earlier request is not counted again.
        may: whether a task may be cancelled. If not, it is `not_allowed`; its descendants are checked nevertheless.
        The caller wakes `parents` after the commit.
        Locks: the rows in id order. Rows that other sessions have locked are `busy` unless `wait`.
        """
        requested = set(ids)
        with self.db.transaction():
            targets = requested | self.descendants(requested) if tree else requested
            rows = list(self.db.lock(targets, wait=wait).only(*CANCEL_COLUMNS))
            # A commit that held a lock may have spawned children. Their ids are later, so the order of locks holds.
            while tree and (children := self.descendants(requested) - targets):
                targets |= children
                rows += self.db.lock(children, wait=wait).only(*CANCEL_COLUMNS)
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(targets, rows)
            repeated = {row.pk for row in rows if row.cancel_requested_at is not None} - requested
            denied = frozenset(row.pk for row in rows if may is not None and row.status not in FINAL and not may(row))
            done = self.cancel_locked([row for row in rows if row.pk not in denied])
        return CancelReport(
            cancelled=len(done.ended),
            requested=len(done.running - repeated),
            skipped=len(requested - done.ended - done.running - busy - denied),
            parents=done.parents,
            busy=busy,
            not_allowed=denied,
        )

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        """Return the live descendants of these tasks, also below tasks that have ended."""
        live: set[UUID] = set()
        seen: set[UUID] = set()
        parents = list(ids)
        while parents:
            batch, parents = parents[:PARENTS_PER_QUERY], parents[PARENTS_PER_QUERY:]
            children = dict(self.db.tasks.filter(parent_id__in=batch).values_list("pk", "finished_at"))
            live |= {pk for pk, finished_at in children.items() if finished_at is None}
            parents += children.keys() - seen
            seen |= children.keys()
        return live

    def cancel_locked(self, rows: Iterable[Task | LockedRow]) -> Cancelled:
        """End the locked tasks that are not RUNNING. Request the cancel of the others from their executors."""
        live = {row.pk: row for row in rows if row.status not in FINAL}
        running = {pk for pk, row in live.items() if row.status == Status.RUNNING}
        queued = live.keys() - running
        self.cancel_queued(queued)
        if running:
            self.db.tasks.filter(pk__in=running).update(cancel_requested_at=Coalesce("cancel_requested_at", Clock()))
        endings = [ending for pk in queued if (ending := ending_of(live[pk], Status.CANCELLED, None))]
        return Cancelled(frozenset(queued), frozenset(running), frozenset(self.messages.report_ends(endings)))

    def cancel_queued(self, ids: Collection[UUID]) -> None:
        """End tasks that this transaction has locked or inserted."""
        if ids:
            self.db.tasks.filter(pk__in=ids).update(
                status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock(), wake_at=None
            )
