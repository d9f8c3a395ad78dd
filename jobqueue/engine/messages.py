"""Messages to tasks, from code, other tasks and ended children; and the wake-up of tasks that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any
from uuid import UUID

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, TextField, When
from django.db.models.functions import Cast

from jobqueue.engine.admissions import Admissions, ready_status
from jobqueue.engine.clock import Clock, now_plus, rank_from
from jobqueue.engine.database import Part, json_from
from jobqueue.exceptions import TaskFinished, TaskNotFound
from jobqueue.models import InboxMessage
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import FINAL, WAITING, NewMessage, Status, StoredMessage
from jobqueue.values.safe_log import safe_logger

logger = safe_logger(__name__)

UNSUCCESSFUL = (Status.FAILED, Status.CANCELLED)  # may be requeued
MESSAGES_PER_POLL = 1000  # with more messages, the task runs again at once
MAX_DOUBLINGS = 10  # of MESSAGES_PER_POLL, for a task that consumes nothing


@dataclass(eq=False)
class Messages(Part):
    admissions: Admissions

    def send(self, messages: Sequence[NewMessage]) -> list[int]:
        """
        Insert messages in the caller's transaction. The caller wakes the receivers after the commit.

        Raise TaskNotFound or TaskFinished, and insert nothing, if a receiver is unknown or has ended. A repeated
        dedupe_key inserts nothing and returns no id, also if its receiver has ended since.
        Locks: the receivers FOR KEY SHARE. This blocks their deletion, but neither other senders nor their executors.
        """
        with self.db.transaction():
            return self.insert_or_raise(messages)

    def insert_or_raise(self, messages: Sequence[NewMessage]) -> list[int]:
        new = self.without_repeats(messages)
        self.check_receivers(new)
        # A receiver that ends at this moment keeps the message undelivered; its commit reports it.
        return [pk for pk, _ in self._insert_all(new)]

    def without_repeats(self, messages: Sequence[NewMessage]) -> list[NewMessage]:
        """Leave out messages with a dedupe_key that their receiver has seen."""
        keys = {message.dedupe_key for message in messages} - {None}
        if not keys:
            return list(messages)
        rows = self.db.messages.filter(
            task__backend=self.db.backend, task_id__in=receivers(messages), dedupe_key__in=keys
        )
        seen = set(rows.values_list("task_id", "dedupe_key"))
        return [message for message in messages if (message.task_id, message.dedupe_key) not in seen]

    def check_receivers(self, messages: Sequence[NewMessage]) -> None:
        """Raise an error for the first receiver that is unknown or has ended."""
        finished_at = dict(self.db.tasks.filter(pk__in=receivers(messages)).values_list("pk", "finished_at"))
        for message in messages:
            if message.task_id not in finished_at:
                raise TaskNotFound(f"There is no task {message.task_id} to send to.")
            if finished_at[message.task_id] is not None:
                raise TaskFinished(f"Task {message.task_id} has ended and takes no messages.")

    def insert(self, messages: Sequence[NewMessage]) -> list[tuple[int, UUID]]:
        """
        Insert messages with a new dedupe_key, or none, for live receivers. Return the id and receiver of each.

        The end of a child is kept for a FAILED or CANCELLED parent, too, unless another session prunes the parent.
        """
        statuses = dict(self.db.tasks.filter(pk__in=receivers(messages)).values_list("pk", "status"))
        live = {pk for pk, status in statuses.items() if status not in FINAL}
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

    def read_messages(self, ids: Collection[UUID], limit: int = MESSAGES_PER_POLL) -> dict[UUID, list[StoredMessage]]:
        """
        Read the unread messages of claimed tasks, at most `limit` for each, in order of arrival.

        The limit doubles with each poll that consumed none, so that a task finds the message it waits for behind any
        number of others. Call this after the claim: later messages make the task run again. Locks: none.
        """
        messages: dict[UUID, list[StoredMessage]] = {}
        for message in self._unread(ids, limit):
            messages.setdefault(message.task_id, []).append(message)
        full = [pk for pk, unread in messages.items() if len(unread) >= limit]
        polls = self.db.tasks.filter(pk__in=full, unread_polls__gt=0).values_list("pk", "unread_polls") if full else ()
        for pk, unread_polls in polls:
            messages[pk] = self._unread([pk], limit << min(unread_polls, MAX_DOUBLINGS))
        return messages

    def _unread(self, ids: Collection[UUID], limit: int) -> list[StoredMessage]:
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

    def find_keys(self, keys: Collection[str]) -> dict[str, UUID]:
        """Return the live tasks that hold these keys."""
        if not keys:
            return {}
        holders = self.db.tasks.live().filter(key__in=keys, taken_over_by_id__isnull=True)
        return {str(key): pk for key, pk in holders.values_list("key", "pk")}

    def find_seen(self, sent: Collection[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """Return the ended tasks for pairs of a key that they held and a dedupe_key that they have seen."""
        keys, dedupe_keys = {key for key, _ in sent}, {dedupe_key for _, dedupe_key in sent}
        rows = self.db.tasks.finished().filter(key__in=keys, inbox__dedupe_key__in=dedupe_keys)
        found = rows.order_by("pk").values_list("key", "inbox__dedupe_key", "pk")
        return {(str(key), str(dedupe_key)): pk for key, dedupe_key, pk in found}

    def task_types(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """Return the types of tasks. Unknown tasks are left out. Locks: none."""
        return dict(self.db.by_ids(ids).values_list("pk", "task_type"))

    def report_ends(self, endings: Sequence[NewMessage]) -> set[UUID]:
        """Notify the parents of ended children, once for each end. Return the parents that got a message."""
        if endings:
            self.db.tasks.filter(pk__in=[ending.sender_id for ending in endings]).update(parent_notified_at=Clock())
        return self.notify_parents(endings)

    def notify_parents(self, endings: Sequence[NewMessage]) -> set[UUID]:
        """
        Send the messages of children that ended. Return the parents that got one.

        A FAILED or CANCELLED parent reads it after a requeue. A SUCCESSFUL parent gets none.
        """
        if not endings:
            return set()
        notified = {receiver for _, receiver in self.insert(endings)}
        for ending in endings:
            if ending.task_id not in notified:
                logger.info("message.dropped id=%s parent_id=%s reason=parent ended", ending.sender_id, ending.task_id)
        return notified

    def withdraw_ends(self, parent_of: Mapping[UUID, UUID]) -> None:
        """
        Delete the unread messages of the ends of requeued children.

        A parent that runs may have read them. Then they stay, and the message of the next end replaces them in its
        inbox. Locks: the parents, skipping locked ones.
        """
        if not parent_of:
            return
        locked = self.db.lock({*parent_of.values()}).only("pk", "status")
        idle = [row.pk for row in locked if row.status != Status.RUNNING]
        unread = self.db.messages.filter(task_id__in=idle, consumed_at__isnull=True)
        unread.filter(sender_id__in=parent_of, child_status__isnull=False)._raw_delete(self.db.using)

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

    def with_more_unread(self, left: Mapping[UUID, int]) -> set[UUID]:
        """Return the locked tasks with more unread messages than their poll read and left."""
        return {pk for pk, count in self.count_unread(left).items() if count > left[pk]} if left else set()

    # --- wake

    def wake_due(self, limit: int = 1000) -> int:
        """
        Make SCHEDULED and SUSPENDED tasks READY when their wake_at has passed. Return how many.

        They rank by their wake_at. Locks: the rows, skipping locked ones.
        """
        due = self.db.tasks.filter(status__in=WAITING, wake_at__isnull=False, wake_at__lte=now_plus())
        is_over = Q(timeout_at__isnull=True) | Q(timeout_at__lte=now_plus())
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

    def wake(self, ids: Iterable[UUID]) -> int:
        """
        Make SUSPENDED tasks READY after the commit that sent them messages. Return how many.

        It locks the tasks in id order, waits for their commits, and reads afterwards. Otherwise a task could seem to be
        RUNNING in an older snapshot.
        """
        with self.db.transaction():
            return self.wake_locked([row.pk for row in self.db.lock(ids, wait=True).only("pk")])

    def wake_locked(self, ids: Collection[UUID]) -> int:
        if not ids:
            return 0
        suspended = self.db.tasks.suspended().filter(pk__in=ids)
        count = suspended.update(status=ready_status(), rank=rank_from(Clock(), self.db.options.aging), wake_at=None)
        self.admissions.request(ids)
        return count

    def wake_or_defer(self, ids: Collection[UUID]) -> None:
        """Wake tasks. If the database fails, the sweep wakes them: the caller's own work is committed."""
        try:
            failpoint("wake.before")
            self.wake(ids)
            failpoint("wake.after")
        except DatabaseError as error:
            logger.info("wake.deferred backend=%s tasks=%d error=%s", self.db.backend, len(ids), error)

    def sweep(self, limit: int = 1000) -> int:
        """
        Wake SUSPENDED tasks that have unread messages, in case a wake-up was lost.

        For a task that left messages unread, only newer messages count; it wakes by its wake_at.
        Locks: the rows, skipping locked ones.
        """
        ids = self._suspended_with_messages(limit)
        if not ids:
            return 0
        with self.db.transaction():
            return self.wake_locked([row.pk for row in self.db.lock(ids).only("pk")])

    def _suspended_with_messages(self, limit: int) -> list[UUID]:
        unread = self.db.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        newer = unread.filter(sent_at__gt=OuterRef("last_attempted_at"))
        stuck = self.db.tasks.suspended().filter(Q(Exists(unread), unread_polls=0) | Q(Exists(newer)))
        return list(stuck.order_by("pk").values_list("pk", flat=True)[:limit])


def ending_of(row: Any, status: Status, body: str | None) -> NewMessage | None:
    """
    Return the message for the parent of a task that ends with this status, once until the task is requeued.

    body: JSON text of its result or error.
    """
    if status not in FINAL or row.parent_id is None or row.parent_notified_at is not None:
        return None
    return NewMessage(task_id=row.parent_id, sender_id=row.pk, child_status=status, body=body or "null")


def receivers(messages: Sequence[NewMessage]) -> set[UUID]:
    return {message.task_id for message in messages}
