"""Reports of bodies: progress and log lines. Tables of their own, so that no row of a running task is written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import OuterRef, QuerySet, Subquery

from jobqueue.engine.database import Part
from jobqueue.models import Task, TaskLog, TaskProgress
from jobqueue.values.reports import CLAIMS_KEPT, BodyLog, Progress, as_text

FIRST = UUID(int=0)
Model = type[models.Model]
TABLES: tuple[Model, ...] = (TaskProgress, TaskLog)


@dataclass(eq=False)
class Reports(Part):
    _swept_to: dict[Model, UUID] = field(default_factory=dict)

    def write(self, progress: Sequence[Progress] = (), logs: Sequence[BodyLog] = ()) -> None:
        """
        Write the progress and the log lines of bodies in place of their earlier ones.

        Progress of a claim that was lost since is dropped. Lines of an ended or lost claim are written, too.
        Keep the lines of the task's newest claims only: an actor may be polled a million times.
        Locks: rows of these tables only, those of progress in id order.
        """
        ids = {report.task_id for report in progress} | {log.task_id for log in logs}
        claims = dict(self.db.by_ids(ids).values_list("pk", "claim_number")) if ids else {}
        if progress:
            self._write_progress(progress, claims)
        if logs:
            self._write_logs(logs, claims)

    def _write_progress(self, reports: Sequence[Progress], claims: dict[UUID, int]) -> None:
        now = self.db.now()
        rows = [
            TaskProgress(
                task_id=report.task_id,
                claim_number=report.claim_number,
                done=report.done,
                total=report.total,
                note=report.note,
                reported_at=now,
            )
            for report in sorted(reports, key=lambda report: report.task_id)
            if claims.get(report.task_id) == report.claim_number
        ]
        columns = ["claim_number", "done", "total", "note", "reported_at"]
        self._rows(TaskProgress).bulk_create(
            rows, update_conflicts=True, unique_fields=["task_id"], update_fields=columns
        )

    def _write_logs(self, logs: Sequence[BodyLog], claims: dict[UUID, int]) -> None:
        rows = [
            TaskLog(task_id=log.task_id, claim_number=log.claim_number, dropped=log.dropped, lines=as_text(log.lines))
            for log in sorted(logs, key=lambda log: (log.task_id, log.claim_number))
            if log.claim_number <= claims.get(log.task_id, -1)
        ]
        self._rows(TaskLog).bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["task_id", "claim_number"],
            update_fields=["dropped", "lines"],
        )
        if many := {log.task_id for log in logs if claims.get(log.task_id, 0) > CLAIMS_KEPT}:
            newest = Subquery(Task.objects.filter(pk=OuterRef("task_id")).values("claim_number"))
            self._rows(TaskLog, many).filter(claim_number__lte=newest - CLAIMS_KEPT)._raw_delete(self.db.using)

    def delete_of(self, ids: Sequence[UUID]) -> None:
        """Delete the rows of tasks that are deleted."""
        for model in TABLES:
            self._rows(model, ids)._raw_delete(self.db.using)

    def delete_orphans(self, limit: int) -> None:
        """
        Delete the rows of tasks that are gone, among the next `limit` rows. A call continues where the last one ended.

        A row that is written while the deletion of its task is not committed outlives that task. A lock of the task
        would prevent it, but the executor would wait for that deletion. Locks: the rows.
        """
        for model in TABLES:
            rows = self._rows(model).filter(task_id__gt=self._swept_to.get(model, FIRST)).order_by("task_id")
            ids = list(rows.values_list("task_id", flat=True)[:limit])
            self._swept_to[model] = ids[-1] if len(ids) == limit else FIRST
            if gone := set(ids) - self.db.existing(ids):
                self._rows(model, gone)._raw_delete(self.db.using)

    def _rows(self, model: Model, ids: Collection[UUID] | None = None) -> QuerySet[Any]:
        """Return the rows of a table of reports: all, or those of some tasks."""
        rows = model._default_manager.using(self.db.using)
        return rows if ids is None else rows.filter(self.db.is_one_of("task_id", ids))
