"""Insert the rows of new tasks. On PostgreSQL: engine/postgres/inserts.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import DatabaseError, IntegrityError, transaction

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.counters import Counters
from jobqueue.engine.database import Part, json_from
from jobqueue.engine.schema import check_migrated
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import CounterDelta, Task, TaskQuerySet
from jobqueue.values.records import Enqueued, NewTask
from jobqueue.values.states import Status

INSERT_BATCH = 1000  # rows per INSERT
KEY_TRIES = 3  # a task with the key may come and go between the insert and the query
# Fields of a NewTask that are columns of its row.
SAME_COLUMNS = (
    "id", "queue_name", "pool", "task_type", "priority", "key", "idempotency_key", "idempotency_digest", "parent_id",
    "max_attempts", "schedule_id", "concurrency_key", "concurrency_limit", "count_while_retrying", "rate_key",
    "rate_limit", "rate_seconds",
)  # fmt: skip


@dataclass(eq=False)
class Inserts(Part):
    counters: Counters
    admissions: Admissions

    def insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """Insert rows with free keys. Raises NotMigrated if the database lacks our tables or functions."""
        try:
            return self._insert(rows)
        except DatabaseError as error:
            check_migrated(error, self.db.using)
            raise

    def _insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        now = self.db.now()
        tasks = [self._new(row, now) for row in rows]
        self.db.tasks.bulk_create([task for task in tasks if task.key is None], batch_size=INSERT_BATCH)
        answers = {task.pk: enqueued_from(task) for task in tasks if task.key is None}
        keyed = sorted((task for task in tasks if task.key is not None), key=lambda task: task.key or "")
        try:
            with transaction.atomic(using=self.db.using):
                self.db.tasks.bulk_create(keyed, batch_size=INSERT_BATCH)
            answers |= {task.pk: enqueued_from(task) for task in keyed}
        except IntegrityError:  # a key is taken, or two tasks have the same
            answers |= {task.pk: self._insert_keyed(task) for task in keyed}
        self.admissions.request(
            [task.pk for task in tasks if task.status == Status.BLOCKED and answers[task.pk].created]
        )
        submitted = Counter((row.queue_name, row.task_type) for row in rows if answers[row.id].created)
        self.counters.add(
            [CounterDelta(queue_name=queue, task_type=name, submitted=n) for (queue, name), n in submitted.items()]
        )
        return [answers[row.id] for row in rows]

    def _insert_keyed(self, task: Task) -> Enqueued:
        for _ in range(KEY_TRIES):
            if holder := self.find_holders({task.key}).get(task.key):
                return holder
            try:
                with transaction.atomic(using=self.db.using):
                    self.db.tasks.bulk_create([task])
            except IntegrityError:  # another session took the key; the next round finds it
                continue
            return enqueued_from(task)
        raise key_taken(task.key)

    def holders(self, keys: Collection[str | None]) -> TaskQuerySet:
        """Select the live tasks that hold keys."""
        return self.db.tasks.live().filter(key__in=keys, taken_over_by_id__isnull=True)

    def find_holders(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the live tasks that hold keys."""
        return self._as_holders(self.holders(keys), "key")

    def holders_of_idempotency_keys(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the tasks, live or ended, that have idempotency keys."""
        return self._as_holders(self.db.tasks.filter(idempotency_key__in=keys), "idempotency_key")

    def _as_holders(self, tasks: TaskQuerySet, column: str) -> dict[str | None, Enqueued]:
        rows = tasks.values_list(column, "pk", "enqueued_at", "status")
        return {key: Enqueued(pk, at, Status(status), False) for key, pk, at, status in rows}

    def _new(self, row: NewTask, now: datetime) -> Task:
        wake_at = requested_time(row.wake_at, row.wake_after_seconds, now)
        is_due = wake_at is None or wake_at <= now
        return Task(
            **{name: getattr(row, name) for name in SAME_COLUMNS},
            **{name: json_from(getattr(row, name)) for name in ("args", "kwargs", "options", "metadata")},
            tags=None if row.tags is None else json_from(row.tags),
            backend=self.db.backend,
            rank=now - timedelta(seconds=row.priority * self.db.options.aging),
            status=new_status(row, is_due=is_due),
            wake_at=None if is_due else wake_at,
            expires_at=requested_time(row.expires_at, row.expires_after_seconds, now),
            enqueued_at=now,
        )


def enqueued_from(task: Task) -> Enqueued:
    return Enqueued(task.pk, task.enqueued_at, Status(task.status), True)


def requested_time(at: datetime | None, after_seconds: float | None, now: datetime) -> datetime | None:
    """Return a requested time: `at`, or so many seconds from now."""
    return at if at is not None or after_seconds is None else now + timedelta(seconds=after_seconds)


def new_status(row: NewTask, *, is_due: bool) -> Status:
    if not is_due:
        return Status.SCHEDULED
    is_limited = row.concurrency_key is not None or row.rate_key is not None
    return Status.BLOCKED if is_limited else Status.READY


def key_taken(key: str | None) -> DuplicateKey:
    return DuplicateKey(f"The key {key!r} is held by a task that this transaction cannot see.")
