"""Progress on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import F, QuerySet, Value

from jobqueue.engine.postgres.connection import OneOf, PostgresDatabase
from jobqueue.engine.progress import ProgressTable
from jobqueue.models import TaskProgress


class PostgresProgressTable(ProgressTable):
    db: PostgresDatabase

    def rows_of(self, ids: Sequence[UUID]) -> QuerySet[TaskProgress]:
        return self.rows.filter(OneOf(F("pk"), Value(list(ids))))
