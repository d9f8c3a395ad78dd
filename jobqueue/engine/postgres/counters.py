"""Counters as statements of PostgreSQL."""

from __future__ import annotations

from itertools import starmap

from jobqueue.engine.portable.counters import Counters, Summed
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresCounters(Counters):
    db: PostgresDatabase

    def _take_deltas(self, limit: int) -> list[Summed]:
        return list(starmap(Summed, self.db.query("take_counter_deltas", delta_limit=limit)))
