"""Tasks that wait for code, as statements of PostgreSQL."""

from __future__ import annotations

from itertools import starmap

from jobqueue.engine.portable.code_waits import MAX_GROUPS, CodeWaits, Group
from jobqueue.engine.postgres.connection import PostgresDatabase


class PostgresCodeWaits(CodeWaits):
    db: PostgresDatabase

    def groups(self) -> list[Group]:
        return list(starmap(Group, self.db.query_prepared("groups_awaiting_code", group_limit=MAX_GROUPS)))
