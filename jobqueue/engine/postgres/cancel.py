"""Cancel as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from jobqueue.engine.portable.cancel import Canceller
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresCanceller(Canceller):
    db: PostgresDatabase

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        above = list(ids)
        return {pk for (pk,) in self.db.query("descendants", backend=self.db.backend, ids=above)} if above else set()
