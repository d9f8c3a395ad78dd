"""Rows of messages: insert, read, count and delete them, and wake their receivers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import starmap
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, TextField, When
from django.db.models.functions import Cast

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.database import Part, json_from
from jobqueue.engine.limit_conditions import ready_status
from jobqueue.models import InboxMessage
from jobqueue.models.clock import Clock, clock_to_compare, rank_from
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import NewMessage, StoredMessage
from jobqueue.values.states import FINAL, WAITING, Status

UNSUCCESSFUL = (Status.FAILED, Status.CANCELLED)  # may be requeued


@dataclass(eq=False)
class InboxStatements(Part):
    """The statements that messages need. PostgreSQL has its own; `Messages` decides when they run, for both."""

    admissions: Admissions

    def sending(self, messages: Sequence[NewMessage]) -> AbstractContextManager[object]:
        """Return the transaction in which messages are inserted."""
        return self.db.transaction()

    def insert(self, messages: Sequence[NewMessage], *, all_or_none: bool = False) -> list[tuple[int, UUID]]:
        """
        Insert messages for live receivers, without repeats of a dedupe_key. Return the id and receiver of each.

        The end of a child is kept for a FAILED or CANCELLED parent, too, unless another session prunes the parent.
        all_or_none: insert nothing if the receiver of a new message is unknown or has ended.
        """
        statuses = dict(self.db.tasks.filter(pk__in=receiver_ids(messages)).values_list("pk", "status"))
        live = {pk for pk, status in statuses.items() if status not in FINAL}
        if all_or_none:
            new = self.without_repeats(messages)
            return self._insert_all(new) if receiver_ids(new) <= live else []
        parents = {message.task_id for message in messages if message.child_status is not None}
        ended = {pk for pk in parents if statuses.get(pk) in UNSUCCESSFUL}
        kept = ended - self._locked_by_others(ended)
        return self._insert_all([m for m in messages if m.task_id in live or (m.child_status and m.task_id in kept)])

    def _insert_all(self, messages: Sequence[NewMessage]) -> list[tuple[int, UUID]]:
        now = self.db.now()
        sent = []
        for message in messages:
            row = InboxMessage(
                task_id=message.task_id,
                sender_id=message.sender_id,
                body=json_from(message.body),
                child_status=message.child_status,
                dedupe_key=message.dedupe_key,
                sent_at=now,
            )
            try:
                with transaction.atomic(using=self.db.using):
                    row.save(using=self.db.using, force_insert=True)
                sent.append((row.pk, message.task_id))
            except IntegrityError:
                if self.without_repeats([message]):
                    raise
        return sent

    def without_repeats(self, messages: Sequence[NewMessage]) -> list[NewMessage]:
        """Leave out messages with a dedupe_key that their receiver has seen."""
        keys = {message.dedupe_key for message in messages} - {None}
        if not keys:
            return list(messages)
        rows = self.db.messages.filter(
            task__backend=self.db.backend, task_id__in=receiver_ids(messages), dedupe_key__in=keys
        )
        seen = set(rows.values_list("task_id", "dedupe_key"))
        return [message for message in messages if (message.task_id, message.dedupe_key) not in seen]

    def read(self, ids: Collection[UUID], limit: int) -> list[StoredMessage]:
        """Return the first unread messages of each task. Locks: none."""
        columns = ("pk", "task_id", "sender_id", "child_status", "text", "sent_at")
        unread: list[StoredMessage] = []
        for task_id in ids:
            rows = self.db.messages.filter(task_id=task_id, consumed_at__isnull=True).order_by("pk")
            rows = rows.annotate(text=Cast("body", TextField()))
            unread += starmap(StoredMessage, rows.values_list(*columns)[:limit])
        return unread

    def count_unread(self, ids: Collection[UUID]) -> dict[UUID, int]:
        """Count the unread messages of tasks. Tasks without any are left out. Locks: none."""
        unread = self.db.messages.filter(task_id__in=ids, consumed_at__isnull=True)
        return dict(unread.values_list("task_id").annotate(count=Count("pk")).order_by())

    def delete_of(self, ids: Sequence[UUID]) -> None:
        """Delete all messages of tasks that have ended."""
        self.db.messages.filter(task_id__in=ids)._raw_delete(self.db.using)

    def unreachable(self, ids: Collection[UUID]) -> set[UUID]:
        """Return the receivers for which an insert would wait: those that another session prunes."""
        unsuccessful = self.db.tasks.filter(pk__in=ids, status__in=UNSUCCESSFUL) if ids else self.db.tasks.none()
        return self._locked_by_others(unsuccessful.values_list("pk", flat=True))

    def _locked_by_others(self, ids: Iterable[UUID]) -> set[UUID]:
        """Lock ended tasks. Return those that another session has locked."""
        ended = set(ids)
        return ended - {row.pk for row in self.db.lock(ended).only("pk")} if ended else ended

    def wake_due(self, limit: int = 1000) -> int:
        """
        Make SCHEDULED and SUSPENDED tasks READY when their wake_at has passed. Return how many.

        They rank by their wake_at. Locks: the rows, skipping locked ones.
        """
        due = self.db.tasks.filter(status__in=WAITING, wake_at__isnull=False, wake_at__lte=clock_to_compare())
        is_over = Q(timeout_at__isnull=True) | Q(timeout_at__lte=clock_to_compare())
        with self.db.transaction():
            ids = list(due.order_by("wake_at").values_list("pk", flat=True)[:limit])
            locked = [row.pk for row in self.db.lock(ids).only("pk")] if ids else []
            count = due.filter(pk__in=locked).update(
                status=ready_status(),
                counts_while_waiting=Case(When(rate_key__isnull=True, then=False), default=F("counts_while_waiting")),
                rank=rank_from(F("wake_at"), self.db.options.aging),
                wake_at=None,
                timed_out=Case(When(is_over, status=Status.SUSPENDED, then=True), default=F("timed_out")),
            )
            self.admissions.request(locked)
            if count:
                failpoint("due.before")
        return count

    def wake_locked(self, ids: Collection[UUID]) -> int:
        """Make the SUSPENDED ones among these locked tasks READY. Return how many."""
        if not ids:
            return 0
        suspended = self.db.tasks.suspended().filter(pk__in=ids)
        count = suspended.update(status=ready_status(), rank=rank_from(Clock(), self.db.options.aging), wake_at=None)
        self.admissions.request(ids)
        return count

    def suspended_with_messages(self, limit: int) -> list[UUID]:
        """Return SUSPENDED tasks with messages that their last poll did not see. Locks: none."""
        unread = self.db.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        newer = unread.filter(sent_at__gt=OuterRef("last_attempted_at"))
        stuck = self.db.tasks.suspended().filter(Q(Exists(unread), unread_polls=0) | Q(Exists(newer)))
        return list(stuck.order_by("pk").values_list("pk", flat=True)[:limit])


def receiver_ids(messages: Sequence[NewMessage]) -> set[UUID]:
    return {message.task_id for message in messages}
