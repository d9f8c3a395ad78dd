"""Enqueue on PostgreSQL: one statement for many tasks, as a rule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from jobqueue.engine.enqueues import Enqueues, acts_on_taken_key
from jobqueue.engine.inserts import INSERT_BATCH
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.values.records import Enqueued, NewTask


class PostgresEnqueues(Enqueues):
    db: PostgresDatabase

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        keyed = [row for row in rows if row.key is not None]
        if len(rows) > INSERT_BATCH or any(acts_on_taken_key(row) for row in keyed):
            return super().enqueue(rows)
        with self.db.read_committed() if keyed else nullcontext():
            return self.inserts.insert(rows)

    def _take_key(self, row: NewTask) -> bool:
        values = {"key": row.key, "task_id": row.id, "seconds": row.unique_for_seconds}
        return bool(self.db.query_prepared("reserve_key", **values))
