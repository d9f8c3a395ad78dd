"""Progress on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import F, Value

from jobqueue.engine.portable.progress import ProgressTable
from jobqueue.engine.postgres.connection import OneOf, PostgresDatabase
from jobqueue.models import TaskProgress


class PostgresProgressTable(ProgressTable):
    db: PostgresDatabase

    def delete_of(self, ids: Sequence[UUID]) -> None:
        rows = TaskProgress.objects.using(self.db.using).filter(OneOf(F("pk"), Value(list(ids))))
        rows._raw_delete(self.db.using)
