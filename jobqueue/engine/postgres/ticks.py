"""Ticks as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection

from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.ticks import Ticks
from jobqueue.models import Schedule


class PostgresTicks(Ticks):
    db: PostgresDatabase

    def _advance(self, rows: Collection[Schedule]) -> None:
        # Django's bulk_update() took most of the time of fire(): it writes a CASE with a branch for each row.
        if rows:
            self.db.execute(
                "advance_schedules",
                ids=[row.pk for row in rows],
                next_at=[row.next_at for row in rows],
                due_at=[row.due_at for row in rows],
                waiting_at=[row.waiting_at for row in rows],
            )
