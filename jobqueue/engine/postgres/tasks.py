"""Tasks as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.tasks import Tasks


class PostgresTasks(Tasks):
    db: PostgresDatabase

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        above = list(ids)
        return {pk for (pk,) in self.db.query("descendants", ids=above)} if above else set()

    def _may_prune(self) -> bool:
        ((is_ours,),) = self.db.query("try_prune_lock")
        return bool(is_ours)
