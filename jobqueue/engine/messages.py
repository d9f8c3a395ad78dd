"""Messages to tasks, from code, other tasks and ended children; and the wake-up of tasks that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from jobqueue.engine.database import Part
from jobqueue.engine.inbox import InboxStatements, receiver_ids
from jobqueue.engine.timeouts import LOCK_WAIT
from jobqueue.exceptions import TaskFinished, TaskNotFound
from jobqueue.models import Task
from jobqueue.models.clock import Clock
from jobqueue.values.batches import BATCH, BatchMessage
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import NewMessage, StoredMessage
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.states import FINAL, Status

logger = safe_logger(__name__)

MESSAGES_PER_POLL = 1000  # with more messages, the task runs again at once
MAX_DOUBLINGS = 10  # of MESSAGES_PER_POLL, for a task that consumes nothing


@dataclass(eq=False)
class Messages(Part):
    inbox: InboxStatements

    def send(self, messages: Sequence[NewMessage]) -> list[int]:
        """
        Insert messages in the caller's transaction. The caller wakes the receivers after the commit.

        Raise TaskNotFound or TaskFinished, and insert nothing, if a receiver is unknown or has ended. A repeated
        dedupe_key inserts nothing and returns no id, also if its receiver has ended since.
        Locks: the receivers FOR KEY SHARE. This blocks their deletion, but neither other senders nor their executors.
        """
        with self.inbox.sending(messages):
            return self.insert_or_raise(messages)

    def insert_or_raise(self, messages: Sequence[NewMessage]) -> list[int]:
        """Insert messages as send() does, in a transaction of the caller."""
        sent = self.inbox.insert(messages, all_or_none=True)
        if not sent and (new := self.inbox.without_repeats(messages)):
            self.check_receivers(new)
            raise TaskFinished  # it had ended, and was requeued since
        # A receiver that ends at this moment keeps the message undelivered; its commit reports it.
        return [pk for pk, _ in sent]

    def check_receivers(self, messages: Sequence[NewMessage]) -> None:
        """Raise an error for the first receiver that is unknown or has ended."""
        finished_at = dict(self.db.tasks.filter(pk__in=receiver_ids(messages)).values_list("pk", "finished_at"))
        for message in messages:
            if message.task_id not in finished_at:
                raise TaskNotFound(f"There is no task {message.task_id} to send to.")
            if finished_at[message.task_id] is not None:
                raise TaskFinished(f"Task {message.task_id} has ended and takes no messages.")

    def read_messages(self, ids: Collection[UUID], limit: int = MESSAGES_PER_POLL) -> dict[UUID, list[StoredMessage]]:
        """
        Read the unread messages of claimed tasks, at most `limit` for each, in order of arrival.

        The limit doubles with each poll that consumed none, so that a task finds the message it waits for behind any
        number of others. Call this after the claim: later messages make the task run again. Locks: none.
        """
        messages: dict[UUID, list[StoredMessage]] = {}
        for message in self.inbox.read(ids, limit):
            messages.setdefault(message.task_id, []).append(message)
        full = [pk for pk, unread in messages.items() if len(unread) >= limit]
        polls = self.db.tasks.filter(pk__in=full, unread_polls__gt=0).values_list("pk", "unread_polls") if full else ()
        for pk, unread_polls in polls:
            messages[pk] = self.inbox.read([pk], limit << min(unread_polls, MAX_DOUBLINGS))
        return messages

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
        seen = rows.order_by("pk").values_list("key", "inbox__dedupe_key", "pk")
        return {(str(key), str(dedupe_key)): pk for key, dedupe_key, pk in seen}

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
        notified = {receiver for _, receiver in self.inbox.insert(endings)}
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

    def cancel_batches(self, ids: Collection[UUID]) -> set[UUID]:
        """Ask the batches among locked tasks to cancel their members, a part with each poll, and end. Return them."""
        batches = set(self.db.by_ids(ids).filter(task_type=BATCH).values_list("pk", flat=True)) if ids else set()
        if batches:
            request = BatchMessage(cancels=True).encode()
            self.inbox.insert([NewMessage(task_id=pk, body=request) for pk in batches])
            self.inbox.wake_locked(batches)
        return batches

    def requeue_members(self, batches: Collection[UUID]) -> None:
        """Ask requeued batches to requeue the members that were not successful, a part with each poll."""
        if batches:
            request = BatchMessage(requeues=True).encode()
            self.inbox.insert([NewMessage(task_id=pk, body=request) for pk in batches])

    def tell_batches(self, parent_of: Mapping[UUID, UUID]) -> list[UUID]:
        """
        Tell batches that members run again. Return the FAILED ones, which the caller requeues.

        Locks: the batches. Waits for other sessions that have locked them.
        """
        parents = {*parent_of.values()}
        batches = (
            set(self.db.by_ids(parents).filter(task_type=BATCH).values_list("pk", flat=True)) if parents else set()
        )
        if not batches:
            return []
        locked = list(self.db.lock(batches, wait=True).only("pk", "status", "inner_state"))
        self._stop_failing(locked)
        self.inbox.insert(
            [
                NewMessage(task_id=batch, sender_id=pk, child_status=Status.READY, body="null")
                for pk, batch in parent_of.items()
                if batch in batches
            ]
        )
        self.inbox.wake_locked(batches)
        return [row.pk for row in locked if row.status == Status.FAILED]

    def _stop_failing(self, batches: Iterable[Task]) -> None:
        """Take the claims of polls that may be about to fail: they would not read a new message. They run again."""
        failing = [row.pk for row in batches if row.status == Status.RUNNING and may_fail(row.inner_state or {})]
        heard = self.inbox.count_unread(failing) if failing else {}  # those that have messages do not fail
        if alone := [pk for pk in failing if not heard.get(pk)]:
            self.db.tasks.filter(pk__in=alone).update(status=Status.READY, executor_id=None)

    def with_more_unread(self, left: Mapping[UUID, int]) -> set[UUID]:
        """Return the locked tasks with more unread messages than their poll read and left."""
        return {pk for pk, count in self.inbox.count_unread(left).items() if count > left[pk]} if left else set()

    # --- wake

    def wake(self, ids: Iterable[UUID]) -> int:
        """
        Make SUSPENDED tasks READY after the commit that sent them messages. Return how many.

        It locks the tasks in id order, waits for their commits, and reads afterwards. Otherwise a task could seem to be
        RUNNING in an older snapshot. Raises LockTimeout after LOCK_WAIT, on PostgreSQL.
        """
        with self.db.transaction(), self.db.lock_timeout(LOCK_WAIT):
            return self.inbox.wake_locked([row.pk for row in self.db.lock(ids, wait=True).only("pk")])

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
        ids = self.inbox.suspended_with_messages(limit)
        if not ids:
            return 0
        with self.db.transaction():
            return self.inbox.wake_locked([row.pk for row in self.db.lock(ids).only("pk")])


def make_ending(row: Any, status: Status, body: str | None) -> NewMessage | None:
    """
    Return the message for the parent of a task that ends with this status, once until the task is requeued.

    body: JSON text of its result or error.
    """
    if status not in FINAL or row.parent_id is None or row.parent_notified_at is not None:
        return None
    return NewMessage(task_id=row.parent_id, sender_id=row.pk, child_status=status, body=body or "null")


def may_fail(state: Mapping[str, Any]) -> bool:
    """Return whether the next poll of a batch with this state fails, if it has no messages."""
    return bool(state.get("is_over")) and state.get("requeued_up_to") is None
