"""Counters as statements of PostgreSQL."""

from __future__ import annotations

from itertools import starmap

from jobqueue.engine.counters import Counters, DeltaSum
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresCounters(Counters):
    db: PostgresDatabase

    def _take_deltas(self, limit: int) -> list[DeltaSum]:
        return list(starmap(DeltaSum, self.db.query("take_counter_deltas", delta_limit=limit)))
