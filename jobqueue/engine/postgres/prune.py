"""Prune as statements of PostgreSQL."""

from __future__ import annotations

from jobqueue.engine.portable.prune import Pruner
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresPruner(Pruner):
    db: PostgresDatabase

    def _may_prune(self) -> bool:
        ((is_ours,),) = self.db.query("try_prune_lock", backend=self.db.backend)
        return bool(is_ours)
