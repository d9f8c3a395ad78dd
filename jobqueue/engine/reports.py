"""The common part of the tables of reports: rows of a task, without a foreign key to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.db import models
from django.db.models import QuerySet

from jobqueue.engine.database import Part

FIRST = UUID(int=0)


class ReportTable(Part):
    model: ClassVar[type[models.Model]]
    _swept_to = FIRST

    def delete_of(self, ids: Sequence[UUID]) -> None:
        """Delete the rows of tasks that are deleted."""
        self.rows_of(ids)._raw_delete(self.db.using)

    def delete_orphans(self, limit: int) -> None:
        """
        Delete the rows of tasks that are gone, among the next `limit` rows. Each call goes on where the last one ended.

        A row that is written while the deletion of its task is not committed outlives that task. A lock of the task
        would prevent it, but the executor would wait for that deletion. Locks: the rows.
        """
        rows = self.rows.filter(task_id__gt=self._swept_to).order_by("task_id")
        ids = list(rows.values_list("task_id", flat=True)[:limit])
        self._swept_to = ids[-1] if len(ids) == limit else FIRST
        if gone := set(ids) - self.db.existing(ids):
            self.delete_of(list(gone))

    @property
    def rows(self) -> QuerySet[Any]:
        return self.model._default_manager.using(self.db.using)

    def rows_of(self, ids: Sequence[UUID]) -> QuerySet[Any]:
        return self.rows.filter(task_id__in=ids)
