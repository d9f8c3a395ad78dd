"""Enqueue tasks: insert their rows, and do what is wanted if a unique key is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from msgspec.structs import replace

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.database import Part, json_from
from jobqueue.engine.entries import EntryStatements
from jobqueue.engine.inserts import KEY_TRIES, Inserts, key_taken, requested_time
from jobqueue.engine.limit_conditions import ready_status
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import KeyReservation, Task
from jobqueue.models.clock import clock_to_compare, clock_to_store
from jobqueue.values.records import AlikeTasks, Enqueued, NewTask
from jobqueue.values.states import Status

ONCE_TRIES = 10  # other sessions may insert the same idempotency keys
# Columns that a replaced task takes from the row that replaces it.
REPLACED_COLUMNS = (
    "queue_name", "pool", "task_type", "priority", "max_attempts", "concurrency_key", "concurrency_limit",
    "count_while_retrying", "rate_key", "rate_limit", "rate_seconds",
)  # fmt: skip
REPLACEABLE = (Status.READY, Status.BLOCKED, Status.SCHEDULED, Status.AWAITING_CODE)


def act_on_taken_keys(rows: Sequence[NewTask]) -> bool:
    """Return whether rows want more than the answer which task has their key."""
    different = rows[:1] if isinstance(rows, AlikeTasks) else rows
    return any(row.on_conflict != "keep" or row.unique_for_seconds is not None for row in different)


@dataclass(eq=False)
class Enqueues(Part):
    inserts: Inserts
    admissions: Admissions
    entries: EntryStatements  # of journals

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert tasks in the caller's transaction. Return one answer for each row, in the same order.

        A row with the key of a live task is not inserted. The answer names that task, which may have ended since. If
        the row replaces, the waiting task gets its values, or the row takes over the key of the running task. Raises
        DuplicateKey if the transaction cannot see the task that has a key, or if a row raises and its key is taken.
        Locks: the new rows, in the order of their keys, so that two callers with the same keys do not deadlock.
        Waits for a concurrent insert of the same key.
        """
        with self.db.transaction():
            return self._insert_unique(rows) if act_on_taken_keys(rows) else self.inserts.insert(rows)

    def enqueue_once(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert as enqueue() does. The answer to a used idempotency_key names its task, even if it has ended.

        A loop around the insert, because ON CONFLICT covers one unique index only. Raises DuplicateKey if the
        transaction cannot see the task. Locks: as enqueue(), in the order of these keys.
        """
        for _ in range(ONCE_TRIES):
            holders = self.inserts.holders_of_idempotency_keys({row.idempotency_key for row in rows})
            firsts: dict[str | UUID, NewTask] = {}
            for row in rows:
                if row.idempotency_key not in holders:
                    firsts.setdefault(row.idempotency_key or row.id, row)
            in_order = sorted(firsts.values(), key=lambda row: row.idempotency_key or "")
            try:
                with self.db.transaction():
                    inserted = self.enqueue(in_order)
            except IntegrityError:  # another session used a key; the next round finds it
                continue
            answers = {row.id: answer for row, answer in zip(in_order, inserted, strict=True)}
            holders |= {row.idempotency_key: replace(answers[row.id], created=False) for row in in_order}
            return [answers.get(row.id) or holders[row.idempotency_key] for row in rows]
        raise DuplicateKey("An idempotency key is held by a task that this transaction cannot see.")

    # --- a row that acts on a taken key

    def _insert_unique(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """Insert rows, and do what each wants if its key is taken. Waits for other sessions with the same keys."""
        reserved = self._reserve([row for row in rows if row.unique_for_seconds is not None])
        new = [row for row in rows if row.id not in reserved]
        answers = reserved | dict(zip((row.id for row in new), self.inserts.insert(new), strict=True))
        taken = sorted((row for row in rows if not answers[row.id].created), key=lambda row: row.key or "")
        for row in taken:
            if row.on_conflict == "raise":
                raise DuplicateKey(f"The key {row.key!r} is taken by task {answers[row.id].id}.")
        replacing = [row for row in taken if row.on_conflict == "replace"]
        if len(replacing) > 1:  # lock their tasks in id order first, so that two callers do not deadlock
            holders = self.inserts.holders({row.key for row in replacing}).order_by("pk")
            list(self.db.with_lock(holders, wait=True).only("pk"))
        for row in replacing:
            answers[row.id] = self._replace(row, may_insert=row.id not in reserved) or answers[row.id]
        for row in taken:
            if row.unique_for_seconds is not None and row.id not in reserved:  # it reserved the key for another task
                self._reservations(row.key).filter(task_id=row.id).update(task_id=answers[row.id].id)
        return [answers[row.id] for row in rows]

    def _reserve(self, rows: Sequence[NewTask]) -> dict[UUID, Enqueued]:
        """Reserve the keys of rows. Return the tasks for which others are reserved, by the row's id."""
        taken: dict[UUID, Enqueued] = {}
        for row in sorted(rows, key=lambda row: row.key or ""):
            held_by = self._reserve_key(row)
            if held_by != row.id:
                holder = self.db.by_ids([held_by]).values_list("enqueued_at", "status").first()
                at, status = holder or (self.db.now(), Status.SUCCESSFUL)  # the task may have been deleted
                taken[row.id] = Enqueued(held_by, at, Status(status), False)
        return taken

    def _reserve_key(self, row: NewTask) -> UUID:
        """
        Reserve the key of a row, unless another task has it. Return the task that has it.

        It reads first, because the statement that takes a key locks a taken one until the caller's transaction ends.
        """
        for _ in range(KEY_TRIES):  # once, unless other sessions take, prune or give up the key in between
            held = self._reservations(row.key).filter(expires_at__gt=clock_to_compare())
            if held_by := held.values_list("task_id", flat=True).first():
                return UUID(str(held_by))
            if self._take_key(row):
                return row.id
        raise key_taken(row.key)

    def _take_key(self, row: NewTask) -> bool:
        """Reserve a key that is free or has expired. Waits for other sessions that do this."""
        values = {"task_id": row.id, "expires_at": clock_to_store(after=row.unique_for_seconds or 0.0)}
        if self._reservations(row.key).filter(expires_at__lte=clock_to_compare()).update(**values):
            return True
        try:
            with transaction.atomic(using=self.db.using):
                self._reservations(row.key).create(backend=self.db.backend, key=row.key or "", **values)
        except IntegrityError:  # another session took the key
            return False
        return True

    def _reservations(self, key: str | None) -> QuerySet[KeyReservation]:
        return KeyReservation.objects.using(self.db.using).filter(backend=self.db.backend, key=key)

    def _replace(self, row: NewTask, *, may_insert: bool) -> Enqueued | None:
        """
        Give the waiting task that has the key the values of this row.

        If that task has started, insert the row, which takes over the key. may_insert: otherwise do nothing, and return
        None.
        """
        for _ in range(KEY_TRIES):
            for holder in self.db.with_lock(self.inserts.holders({row.key}), wait=True).only(
                "pk", "status", "polls", "claim_number", "enqueued_at"
            ):
                # The journal of a workflow that lost its executor in its first run fits the old arguments only.
                has_journal = holder.claim_number > 0 and self.entries.of(holder.pk).exists()
                if holder.status in REPLACEABLE and holder.polls == 0 and not has_journal:
                    return self._replace_waiting(holder, row)
                if not may_insert:
                    return None
                self.db.tasks.filter(pk=holder.pk).update(taken_over_by_id=row.id)
                return self.inserts.insert([row])[0]
            if not may_insert:
                return None
            if (answer := self.inserts.insert([row])[0]).created:
                return answer
        raise key_taken(row.key)

    def _replace_waiting(self, holder: Task, row: NewTask) -> Enqueued:
        """Replace the values of a locked task that has not started. Its longest wait counts from enqueued_at."""
        now = self.db.now()
        wake_at = requested_time(row.wake_at, row.wake_after_seconds, now)
        if wake_at is not None and row.max_wait_seconds is not None:
            wake_at = min(wake_at, holder.enqueued_at + timedelta(seconds=row.max_wait_seconds))
        is_due = wake_at is None or wake_at <= now
        # The limits of the old values may allow another task now.
        self.admissions.request([holder.pk], are_freed=True)
        rows = self.db.tasks.filter(pk=holder.pk)
        rows.update(
            **{name: getattr(row, name) for name in REPLACED_COLUMNS},
            **{name: json_from(getattr(row, name)) for name in ("args", "kwargs", "options", "metadata")},
            tags=None if row.tags is None else json_from(row.tags),
            rank=now - timedelta(seconds=row.priority * self.db.options.aging),
            wake_at=None if is_due else wake_at,
            expires_at=requested_time(row.expires_at, row.expires_after_seconds, now),
            counts_while_waiting=False,
            awaits_code_since=None,
            attempts=0,
            inner_state=None,  # a checkpoint of the old arguments
        )
        rows.update(status=ready_status() if is_due else Status.SCHEDULED)
        self.admissions.request([holder.pk])
        return Enqueued(holder.pk, holder.enqueued_at, Status(rows.values_list("status", flat=True)[0]), False)
