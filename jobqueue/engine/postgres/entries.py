"""Rows of journals, as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast
from uuid import UUID

from django.db import OperationalError
from django.db.models import Func, QuerySet, UUIDField, Value

from jobqueue.engine.entries import EntryStatements, as_entry
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_json, as_json_array
from jobqueue.engine.timeouts import sqlstate_of
from jobqueue.models import JournalEntry
from jobqueue.values.journal import Entry, Journal
from jobqueue.values.records import ClaimedTask

# Of jobqueue/migrations/sql/record.sql. entries: a JSON list of Entry.
RECORD = "SELECT jobqueue_record(%(task_id)s, %(claim_number)s, %(executor_id)s, %(entries)s)"
SERIALIZATION_FAILURE = "40001"


class UnknownId(Func):
    """An id that the planner does not know, so that it uses no statistics of it."""

    arity = 1
    template = "(SELECT %(expressions)s::uuid)"
    output_field = UUIDField()


class PostgresEntries(EntryStatements):
    db: PostgresDatabase

    def of(self, task_id: UUID) -> QuerySet[JournalEntry]:
        unknown = UnknownId(Value(task_id))
        return self.rows.filter(task_id__gte=unknown, task_id__lte=unknown)

    def read(self, task_id: UUID) -> Journal:
        rows = self.db.query_prepared("read_journal", task_id=task_id)
        entries = [as_entry(values) for _, *values in rows if values[0] is not None]
        return Journal(entries, is_cancel_requested=any(is_requested for is_requested, *_ in rows[:1]))

    def record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry]) -> bool | None:
        """Write entries in one statement, which is a transaction of its own outside of the caller's."""
        values = {
            "task_id": claimed.id,
            "claim_number": claimed.claim_number,
            "executor_id": executor_id,
            "entries": as_json(entries),
        }
        try:
            ((is_requested,),) = self.db.fetch_prepared(RECORD, **values)
        except OperationalError as error:
            # The site's transactions are REPEATABLE READ, and another session has changed the row since.
            if sqlstate_of(error) != SERIALIZATION_FAILURE or self.db.has_caller():
                raise
            ((is_requested,),) = self.db.fetch_prepared(RECORD, **values)
        return cast(bool | None, is_requested)

    def record_steps(
        self, executor_id: UUID, records: Sequence[tuple[ClaimedTask, Sequence[Entry]]]
    ) -> dict[UUID, bool]:
        rows = self.db.query_prepared(
            "record_steps",
            executor_id=executor_id,
            ids=as_array(claimed.id for claimed, _ in records),
            claim_numbers=as_array(claimed.claim_number for claimed, _ in records),
            entries=as_json_array(as_json(entries) for _, entries in records),
        )
        return dict(rows)

    def write(self, entries_of: Mapping[UUID, Sequence[Entry]]) -> None:
        texts = as_json_array(as_json(entries) for entries in entries_of.values())
        self.db.query_prepared("write_journals", ids=as_array(entries_of), entries=texts)

    def delete_of(self, ids: Collection[UUID]) -> None:
        self.db.execute("delete_journals", ids=list(ids))

    def that_finish_themselves(self, ids: Collection[UUID]) -> set[UUID]:
        return {pk for (pk,) in self.db.query("tasks_that_finish_themselves", ids=list(ids))} if ids else set()
