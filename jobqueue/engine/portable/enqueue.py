"""Enqueue: new rows, in the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from msgspec.structs import replace

from jobqueue.engine.portable.counters import Counters
from jobqueue.engine.portable.database import Database, Part, json_from
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import CounterDelta, Task, TaskQuerySet
from jobqueue.records import Enqueued, NewTask, Status

ENQUEUE_BATCH = 1000  # rows per INSERT
KEY_TRIES = 3  # a task with the key may come and go between the insert and the query
ONCE_TRIES = 10  # other sessions may insert the same idempotency keys


class Enqueuer(Part):
    def __init__(self, db: Database, counters: Counters) -> None:
        super().__init__(db)
        self.counters = counters

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert tasks in the caller's transaction. Return one answer for each row, in the same order.

        A row with the key of a live task is not inserted. The answer names that task, which may have ended since.
        Raises DuplicateKey if the transaction cannot see that task.
        Locks: the new rows, in the order of their keys, so that two callers with the same keys do not deadlock.
        Waits for a concurrent insert of the same key.
        """
        with self.db.transaction():
            return self.insert(rows)

    def enqueue_once(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert as enqueue() does. The answer to a used idempotency_key names its task, even if it has ended.

        A loop around the insert, because ON CONFLICT covers one unique index only. Raises DuplicateKey if the
        transaction cannot see the task. Locks: as enqueue(), in the order of these keys.
        """
        for _ in range(ONCE_TRIES):
            holders = self._seen({row.idempotency_key for row in rows})
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

    def _seen(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the tasks, live or ended, that have idempotency keys."""
        return self._as_holders(self.db.tasks.filter(idempotency_key__in=keys), "idempotency_key")

    def insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        now = self.db.now()
        tasks = [self._new(row, now) for row in rows]
        self.db.tasks.bulk_create([task for task in tasks if task.key is None], batch_size=ENQUEUE_BATCH)
        answers = {task.pk: created(task) for task in tasks if task.key is None}
        keyed = sorted((task for task in tasks if task.key is not None), key=lambda task: task.key or "")
        for start in range(0, len(keyed), ENQUEUE_BATCH):
            answers |= self._enqueue_keyed(keyed[start : start + ENQUEUE_BATCH])
        submitted = Counter((row.queue_name, row.task_type) for row in rows if answers[row.id].created)
        self.counters.add(
            [CounterDelta(queue_name=queue, task_type=name, submitted=n) for (queue, name), n in submitted.items()]
        )
        return [answers[row.id] for row in rows]

    def _enqueue_keyed(self, tasks: Sequence[Task]) -> dict[UUID, Enqueued]:
        """Insert the tasks with a free key together, or one by one if another session takes a key."""
        holders = self._holders_of({task.key for task in tasks})
        first: dict[str | None, Task] = {}
        for task in tasks:
            first.setdefault(task.key, task)
        free = [task for key, task in first.items() if key not in holders]
        try:
            with transaction.atomic(using=self.db.using):
                self.db.tasks.bulk_create(free, batch_size=ENQUEUE_BATCH)
        except IntegrityError:
            return {task.pk: self._enqueue_one(task) for task in tasks}
        answers = {task.pk: created(task) for task in free}
        holders |= {task.key: replace(answers[task.pk], created=False) for task in free}
        return {task.pk: answers.get(task.pk, holders[task.key]) for task in tasks}

    def _enqueue_one(self, task: Task) -> Enqueued:
        for _ in range(KEY_TRIES):
            if holder := self._holders_of({task.key}).get(task.key):
                return holder
            try:
                with transaction.atomic(using=self.db.using):
                    self.db.tasks.bulk_create([task])
            except IntegrityError:  # another session took the key; the next round finds it
                continue
            return created(task)
        raise key_taken(task.key)

    def _holders_of(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the live tasks that hold keys."""
        return self._as_holders(self.db.tasks.live().filter(key__in=keys), "key")

    def _as_holders(self, tasks: TaskQuerySet, column: str) -> dict[str | None, Enqueued]:
        rows = tasks.values_list(column, "pk", "enqueued_at", "status")
        return {key: Enqueued(pk, at, Status(status), False) for key, pk, at, status in rows}

    def _new(self, row: NewTask, now: datetime) -> Task:
        wake_at = moment(row.wake_at, row.wake_after_seconds, now)
        is_due = wake_at is None or wake_at <= now
        return Task(
            id=row.id,
            backend=self.db.backend,
            queue_name=row.queue_name,
            pool=row.pool,
            task_type=row.task_type,
            priority=row.priority,
            rank=now - timedelta(seconds=row.priority * self.db.options.aging),
            args=json_from(row.args),
            kwargs=json_from(row.kwargs),
            options=json_from(row.options),
            metadata=json_from(row.metadata),
            key=row.key,
            idempotency_key=row.idempotency_key,
            idempotency_digest=row.idempotency_digest,
            parent_id=row.parent_id,
            status=Status.READY if is_due else Status.SCHEDULED,
            wake_at=None if is_due else wake_at,
            expires_at=moment(row.expires_at, row.expires_after_seconds, now),
            max_attempts=row.max_attempts,
            enqueued_at=now,
        )


def created(task: Task) -> Enqueued:
    return Enqueued(task.pk, task.enqueued_at, Status(task.status), True)


def moment(at: datetime | None, after_seconds: float | None, now: datetime) -> datetime | None:
    """Return a requested time: `at`, or so many seconds from now."""
    return at if at is not None or after_seconds is None else now + timedelta(seconds=after_seconds)


def key_taken(key: str | None) -> DuplicateKey:
    return DuplicateKey(f"The key {key!r} is held by a task that this transaction cannot see.")
