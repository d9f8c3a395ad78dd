"""The rows of one backend: every part of the engine reads, locks and writes through this."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models import Expression, JSONField, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, Coalesce, Concat, Right

from jobqueue.conf.options import Options
from jobqueue.engine.schema import check_migrated
from jobqueue.models import (
    Executor,
    Heartbeat,
    InboxMessage,
    Queue,
    Schedule,
    ScheduleQuerySet,
    ScheduleTick,
    Task,
    TaskQuerySet,
)
from jobqueue.models.clock import read_clock
from jobqueue.values.history import HISTORY_CHARACTERS
from jobqueue.values.json import decode

ERRORS_KEPT = 20  # newest, per task
WORKERS_KEPT = 100  # newest, per task
CALLER_LOCK_WAIT = "1s"  # for a verb that people or code of the site call

# JSON columns of a claimed task.
RAW = ("args", "kwargs", "inner_state", "options", "metadata", "errors", "worker_ids")

Rows = TypeVar("Rows", bound=QuerySet[Any])


class LockTimeout(OperationalError):
    """Another transaction has held a lock for too long."""


class Database:
    """The rows of one backend, their locks, transactions and clock. using: Django's alias of the database."""

    def __init__(self, backend: str, options: Options) -> None:
        self.backend = backend
        self.options = options
        self.using = options.database

    @property
    def tasks(self) -> TaskQuerySet:
        return Task.objects.using(self.using).filter(backend=self.backend)

    @property
    def messages(self) -> QuerySet[InboxMessage]:
        return InboxMessage.objects.using(self.using)

    @property
    def executors(self) -> QuerySet[Executor]:
        return Executor.objects.using(self.using).filter(backend=self.backend)

    @property
    def heartbeats(self) -> QuerySet[Heartbeat]:
        """Of any backend: they are read by the id of an executor."""
        return Heartbeat.objects.using(self.using)

    @property
    def queues(self) -> QuerySet[Queue]:
        return Queue.objects.using(self.using).filter(backend=self.backend)

    @property
    def schedules(self) -> ScheduleQuerySet:
        return Schedule.objects.using(self.using).filter(backend=self.backend)

    @property
    def ticks(self) -> QuerySet[ScheduleTick]:
        return ScheduleTick.objects.using(self.using)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Open a transaction, or a savepoint in the caller's.

        With a savepoint, a caller that catches the error of a verb can continue its transaction. Raises NotMigrated if
        the database lacks our tables or functions.
        """
        try:
            with transaction.atomic(using=self.using):
                yield
        except DatabaseError as error:
            check_migrated(error, self.using)
            raise

    @contextmanager
    def lock_timeout(self, wait: str) -> Iterator[None]:
        """Raise LockTimeout if a statement waits longer for a lock, where the database can. wait: "500ms"."""
        yield

    @contextmanager
    def bounded(self, what: str, wait: str = "") -> Iterator[None]:
        """
        Open a transaction, or a savepoint in the caller's, that waits CALLER_LOCK_WAIT at most for a lock.

        Raise LockTimeout after that. what: the objects that may be locked, for its message. wait: another limit.
        """
        wait = wait or CALLER_LOCK_WAIT
        try:
            with self.transaction(), self.lock_timeout(wait):
                yield
        except LockTimeout as error:
            raise LockTimeout(
                f"Nothing was changed: another transaction has locked {what} for more than {wait}. Try again later."
            ) from error.__cause__

    def settings_in_the_way(self, sqlstate: str) -> list[str]:
        """Return the settings that a body has made in an open transaction, and that can cause this error."""
        return []

    def now(self) -> datetime:
        """Read the database's clock."""
        return read_clock(self.using)

    def is_one_of(self, column: str, ids: Iterable[UUID]) -> Q | Expression:
        """Return the condition that a column of ids has one of these."""
        return Q(**{f"{column}__in": list(ids)})

    def by_ids(self, ids: Iterable[UUID]) -> TaskQuerySet:
        return self.tasks.filter(self.is_one_of("pk", ids))

    def lock(self, ids: Iterable[UUID], *, wait: bool = False) -> TaskQuerySet:
        """
        Select tasks by id, and lock them in id order. Skip rows that others have locked, unless `wait`.

        Locks: FOR NO KEY UPDATE, which does not conflict with a message being sent (FOR KEY SHARE).
        """
        return self.with_lock(self.by_ids(ids).order_by("pk"), wait=wait)

    def with_lock(self, rows: Rows, *, wait: bool = False, no_key: bool = True) -> Rows:
        """Lock the selected rows FOR NO KEY UPDATE or FOR UPDATE, in the order of the query, if the database can."""
        if not connections[self.using].features.has_select_for_update:
            return rows
        return rows.select_for_update(no_key=no_key, skip_locked=not wait, of=("self",))

    def existing(self, ids: Collection[UUID]) -> set[UUID]:
        """Return the ids that have a row, of any backend."""
        return set(Task.objects.using(self.using).filter(self.is_one_of("pk", ids)).values_list("pk", flat=True))

    def missing(self, ids: Collection[UUID]) -> set[UUID]:
        """Return the ids that have no row."""
        return set(ids) - set(self.by_ids(ids).values_list("pk", flat=True)) if ids else set()

    def locked_elsewhere(self, ids: Collection[UUID], locked: Iterable[Task]) -> frozenset[UUID]:
        """Return the ids with a row that is not among the locked ones."""
        others = set(ids) - {row.pk for row in locked}
        return frozenset(others - self.missing(others))


def with_texts(rows: TaskQuerySet) -> list[Any]:
    """Read tasks with their JSON columns as text, such as `args_text`, so that one bad row does not fail its batch."""
    return list(rows.annotate(**{f"{name}_text": Cast(name, TextField()) for name in RAW}).defer(*RAW))


@dataclass(eq=False)
class Part:
    """A part of the engine: some verbs on one backend's rows. Its fields are the parts that it needs."""

    db: Database


def appended(line: str) -> Expression:
    """Append a line to the column `history`, and drop the oldest ones."""
    text = TextField()
    return Right(Concat(Coalesce("history", Value("", text)), Value(line, text)), HISTORY_CHARACTERS)


def json_from(text: str) -> Expression:
    """
    Write JSON text into a JSON column as it is.

    The database validates it. Python may be stricter, for example about the length of an integer.
    """
    return Cast(Value(text, TextField()), JSONField())


def read_list(text: str) -> list[Any]:
    """Decode a list column. An unreadable one counts as empty, so that its task can still end."""
    try:
        value = decode(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []
