"""The lines that bodies log, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import F, QuerySet, Value

from jobqueue.engine.body_log import LogTable
from jobqueue.engine.postgres.connection import OneOf, PostgresDatabase
from jobqueue.models import TaskLog


class PostgresLogTable(LogTable):
    db: PostgresDatabase

    def rows_of(self, ids: Sequence[UUID]) -> QuerySet[TaskLog]:
        return self.rows.filter(OneOf(F("task_id"), Value(list(ids))))
