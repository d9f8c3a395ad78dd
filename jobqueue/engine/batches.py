"""Batches: the ends of their members, and what a batch does alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from jobqueue.engine.database import Part
from jobqueue.engine.inbox import InboxStatements
from jobqueue.engine.tasks import CANCEL_COLUMNS, Tasks
from jobqueue.models import JournalEntry
from jobqueue.values.journal import EntryKind
from jobqueue.values.states import Status

WINDOW = 10_000  # tasks among which it looks for members


@dataclass(eq=False)
class Batches(Part):
    inbox: InboxStatements
    tasks: Tasks

    def record_ends(self, batch_id: UUID, ends: Mapping[UUID, Status]) -> dict[UUID, Status]:
        """
        Remember which members have ended unsuccessfully. Return how those of `ends` that it knew had ended before.

        ends: the states of members; one that is not final is of a member that was requeued. In the transaction of the
        batch's poll.
        """
        entries = JournalEntry.objects.using(self.db.using).filter(task_id=batch_id)
        earlier = entries.filter(name__in=[str(pk) for pk in ends]).values_list("name", "status")
        before = {UUID(name): Status(status) for name, status in earlier}
        unsuccessful = {pk: status for pk, status in ends.items() if status in (Status.FAILED, Status.CANCELLED)}
        if gone := [str(pk) for pk in before.keys() - unsuccessful.keys()]:
            entries.filter(name__in=gone).delete()
        now = self.db.now()
        entries.bulk_create(
            [
                JournalEntry(
                    task_id=batch_id,
                    name=str(pk),
                    kind=EntryKind.MEMBER,
                    status=status,
                    child_id=pk,
                    finished_at=now,
                )
                for pk, status in unsuccessful.items()
            ],
            update_conflicts=True,
            unique_fields=["task", "name"],
            update_fields=["status", "finished_at"],
        )
        return before

    def newest_entry(self, batch_id: UUID) -> int:
        """Return the entry of the member that was the last one to end unsuccessfully; 0: there is none."""
        entries = JournalEntry.objects.using(self.db.using).filter(task_id=batch_id)
        return entries.order_by("-pk").values_list("pk", flat=True).first() or 0

    def requeue_members(self, batch_id: UUID, after: int, last: int, limit: int) -> int | None:
        """
        Requeue some members that were not successful. Return the entry after which the next call goes on; None: none.

        after, last: entries between which it looks. Members that fail again meanwhile have later ones. It skips members
        that are locked, or whose key is taken. Locks: as Tasks.requeue().
        """
        entries = JournalEntry.objects.using(self.db.using).filter(task_id=batch_id, pk__gt=after, pk__lte=last)
        page = list(entries.order_by("pk").values_list("pk", "child_id")[:limit])
        self.tasks.requeue([member for _, member in page if member is not None], wait=False)
        return page[-1][0] if len(page) == limit else None

    def is_alone(self, batch_id: UUID, messages_read: int) -> bool:
        """
        Return whether no other session adds members to a batch, and its poll has read all of its messages.

        A session that adds members has locked the batch FOR KEY SHARE until its transaction ends. Until the end of the
        caller's transaction no other session can add members. Locks: the row FOR UPDATE, unless it is locked.
        """
        row = self.db.tasks.filter(pk=batch_id).only("pk")
        is_locked = bool(list(self.db.with_lock(row, no_key=False)))
        return is_locked and self.inbox.count_unread([batch_id]).get(batch_id, 0) <= messages_read

    def cancel_members(self, batch_id: UUID, after: UUID, limit: int) -> tuple[int, UUID | None]:
        """
        Cancel some live members of a batch that ends. Return how many, and the id after which the next call goes on.

        None: no later id is a member's. It reads the next tasks by their ids, because the index of children has no
        order: behind a million members that have ended, each call would read all of them again. Locks: the members in
        id order, skipping locked ones.
        """
        window = self.db.tasks.filter(pk__gt=after).order_by("pk")
        seen = list(window.values_list("pk", "parent_id", "finished_at", "cancel_requested_at")[:WINDOW])
        live = [pk for pk, *columns in seen if columns == [batch_id, None, None]]
        if len(live) >= limit:
            return self._cancel(live[:limit]), live[limit - 1]
        return self._cancel(live), seen[-1][0] if len(seen) == WINDOW else None

    def cancel_others(self, batch_id: UUID, limit: int) -> int | None:
        """
        Cancel live members that cancel_members() has left: locked ones, and those of a process whose clock was behind.

        Return how many; None: all members have ended, or were asked to stop. Locks: as cancel_members().
        """
        # A range: see descendants.sql. Its order makes it read the index of children.
        live = self.db.tasks.live().filter(parent_id__gte=batch_id, parent_id__lte=batch_id)
        live = live.filter(cancel_requested_at__isnull=True)
        ids = list(live.order_by("parent_id").values_list("pk", flat=True)[:limit])
        return self._cancel(ids) if ids else None

    def _cancel(self, ids: Sequence[UUID]) -> int:
        rows = list(self.db.lock(ids).only(*CANCEL_COLUMNS)) if ids else []
        now = self.db.now()
        for row in rows:
            row.parent_notified_at = now  # the batch reads no message any more
        self.tasks.cancel_locked(rows)
        return len(rows)
