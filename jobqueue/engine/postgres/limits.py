"""Limits as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jobqueue.engine.portable.limits import Limits
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresLimits(Limits):
    db: PostgresDatabase

    def lock_queues(self, names: Collection[str]) -> dict[str, int | None]:
        return dict(self.db.query_prepared("lock_queues", backend=self.db.backend, queues=list(names)))

    def count_running(self, most: Mapping[str, int]) -> dict[str, int]:
        return dict(
            self.db.query_prepared(
                "count_running", backend=self.db.backend, queues=list(most), most=list(most.values())
            )
        )
