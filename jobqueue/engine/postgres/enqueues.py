"""Enqueue on PostgreSQL: one statement for many tasks, as a rule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from jobqueue.engine.enqueues import Enqueues, act_on_taken_keys
from jobqueue.engine.inserts import INSERT_BATCH
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.values.records import Enqueued, NewTask


class PostgresEnqueues(Enqueues):
    db: PostgresDatabase

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        if len(rows) > INSERT_BATCH or act_on_taken_keys(rows):
            return super().enqueue(rows)
        with self.db.read_committed() if any(row.key is not None for row in rows) else nullcontext():
            return self.inserts.insert(rows)

    def _take_key(self, row: NewTask) -> bool:
        values = {"key": row.key, "task_id": row.id, "seconds": row.unique_for_seconds}
        return bool(self.db.query_prepared("reserve_key", **values))
