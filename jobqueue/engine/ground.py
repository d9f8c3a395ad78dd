"""What every verb stands on: the rows of one backend, their locks, transactions and clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Expression, JSONField, Model, QuerySet, TextField, Value
from django.db.models.functions import Cast

from jobqueue.conf import Options
from jobqueue.engine.clock import read_clock
from jobqueue.models import Executor, InboxMessage, Task, TaskQuerySet

ERRORS_KEPT = 20  # newest, per task
WORKERS_KEPT = 100  # newest, per task
SUSPECT_LOSSES = 2  # a task that lost this many executors runs alone in its process

Row = TypeVar("Row", bound=Model)


class Ground:
    """One backend's rows on one database."""

    def __init__(self, alias: str, options: Options) -> None:
        self.alias = alias
        self.options = options
        self.database = options.database

    @property
    def tasks(self) -> TaskQuerySet:
        return Task.objects.using(self.database).filter(backend=self.alias)

    @property
    def messages(self) -> QuerySet[InboxMessage]:
        return InboxMessage.objects.using(self.database)

    @property
    def executors(self) -> QuerySet[Executor]:
        return Executor.objects.using(self.database).filter(backend=self.alias)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Open the verb's own transaction, or a savepoint in the caller's.

        A savepoint, so that a caller who catches what a verb raises can go on.
        """
        with transaction.atomic(using=self.database):
            yield

    def lock(self, ids: Iterable[UUID], *, wait: bool = False) -> TaskQuerySet:
        """
        Select tasks by id, locking them in id order; rows locked elsewhere are left out unless `wait`.

        Locks: FOR NO KEY UPDATE, which a message being sent (FOR KEY SHARE) does not collide with.
        """
        return self.locking(self.among(ids).order_by("pk"), wait=wait)

    def among(self, ids: Iterable[UUID]) -> TaskQuerySet:
        return self.tasks.filter(pk__in=list(ids))

    def locking(self, rows: TaskQuerySet, *, wait: bool = False) -> TaskQuerySet:
        """Lock what a query selects, in its order, where the database can."""
        features = connections[self.database].features
        if not features.has_select_for_update:
            return rows
        return rows.select_for_update(
            no_key=features.has_select_for_no_key_update,
            skip_locked=not wait and features.has_select_for_update_skip_locked,
            of=("self",) if features.has_select_for_update_of else (),
        )

    def unlocked(self, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Lock the selected rows FOR UPDATE. Skip rows that others have locked, if the database can."""
        features = connections[self.database].features
        if not features.has_select_for_update:
            return rows
        return rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked)

    def gone(self, ids: Collection[UUID]) -> set[UUID]:
        """Of rows that a lock did not return: those that are not there at all."""
        return set(ids) - set(self.among(ids).values_list("pk", flat=True)) if ids else set()

    def busy(self, ids: Collection[UUID], locked: Iterable[Task]) -> frozenset[UUID]:
        """Of rows that a lock did not wait for: those that somebody else has locked."""
        missing = set(ids) - {row.pk for row in locked}
        return frozenset(missing - self.gone(missing))

    def now(self) -> datetime:
        """Read the database's clock."""
        return read_clock(self.database)


def json_from(text: str) -> Expression:
    """
    Write JSON text into a JSON column as it stands.

    The database is the judge of it: Python, which may be stricter (about the length of an integer,
    say), need not read what it only carries.
    """
    return Cast(Value(text, TextField()), JSONField())
