"""Tasks that wait for code, as statements of PostgreSQL."""

from __future__ import annotations

from itertools import starmap
from uuid import UUID

from jobqueue.engine.code_waits import FIRST, MAX_GROUPS, BlockedHead, CodeWaits, Group
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresCodeWaits(CodeWaits):
    db: PostgresDatabase

    def groups(self, after: tuple[str, str] = FIRST) -> list[Group]:
        queue_name, task_type = after
        rows = self.db.query_prepared(
            "groups_awaiting_code", after_queue=queue_name, after_name=task_type, group_limit=MAX_GROUPS
        )
        return list(starmap(Group, rows))

    def _blocked(self, head: BlockedHead, limit: int) -> list[tuple[UUID, str, str]]:
        return self.db.query(f"blocked_by_{head.kind}", key=head.key, head_limit=limit)
