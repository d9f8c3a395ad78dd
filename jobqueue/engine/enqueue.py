"""Enqueue: new rows, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from jobqueue.engine.ground import Ground, json_from
from jobqueue.exceptions import KeyTaken
from jobqueue.models import Task
from jobqueue.outcome import Enqueued, NewTask, Status

ENQUEUE_BATCH = 1000  # rows per INSERT
KEY_TRIES = 3  # a key's holder may come and go between the insert and the look


class Enqueue(Ground):
    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """
        Insert tasks in the caller's transaction; answers come in the order of `rows`.

        A row whose key a live task holds is not inserted: the answer names that task. Raises KeyTaken
        when the holder cannot be seen. Locks: the new rows, in the order of their keys, so that two
        callers with the same keys do not deadlock; waits for a concurrent insert of the same key.
        """
        with self.transaction():
            return self._enqueue(rows)

    def _enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        now = self.now()
        tasks = [self._new(row, now) for row in rows]
        self.tasks.bulk_create([task for task in tasks if task.key is None], batch_size=ENQUEUE_BATCH)
        answers = {task.pk: Enqueued(task.pk, now, Status(task.status), True) for task in tasks}
        for task in sorted(tasks, key=lambda task: task.key or ""):
            if task.key is not None:
                answers[task.pk] = self._enqueue_keyed(task)
        return [answers[row.id] for row in rows]

    def _enqueue_keyed(self, task: Task) -> Enqueued:
        for _ in range(KEY_TRIES):
            holder = self.tasks.live().filter(key=task.key).values_list("pk", "enqueued_at", "status").first()
            if holder is not None:
                return Enqueued(holder[0], holder[1], Status(holder[2]), False)
            try:
                with transaction.atomic(using=self.database):
                    self.tasks.bulk_create([task])
            except IntegrityError:  # somebody else took the key in between; the next look finds it
                continue
            return Enqueued(task.pk, task.enqueued_at, Status(task.status), True)
        raise key_taken(task.key)

    def _new(self, row: NewTask, now: datetime) -> Task:
        wake_at = moment(row.wake_at, row.wake_after_seconds, now)
        is_due = wake_at is None or wake_at <= now
        return Task(
            id=row.id,
            backend=self.alias,
            queue_name=row.queue_name,
            task_type=row.task_type,
            priority=row.priority,
            rank=now - timedelta(seconds=row.priority * self.options.aging),
            args=json_from(row.args),
            kwargs=json_from(row.kwargs),
            options=json_from(row.options),
            metadata=json_from(row.metadata),
            key=row.key,
            parent_id=row.parent_id,
            status=Status.READY if is_due else Status.SCHEDULED,
            wake_at=None if is_due else wake_at,
            expires_at=moment(row.expires_at, row.expires_after_seconds, now),
            max_attempts=row.max_attempts,
            enqueued_at=now,
        )


def moment(at: datetime | None, after_seconds: float | None, now: datetime) -> datetime | None:
    """Give the moment that is asked for as such, or as seconds from now."""
    return at if at is not None or after_seconds is None else now + timedelta(seconds=after_seconds)


def key_taken(key: str | None) -> KeyTaken:
    return KeyTaken(f"The key {key!r} is held by a task that this transaction cannot see.")
