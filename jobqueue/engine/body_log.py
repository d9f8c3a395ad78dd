"""The lines that bodies log. They have a table of their own, as progress has."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import OuterRef, Subquery

from jobqueue.engine.reports import ReportTable
from jobqueue.models import Task, TaskLog
from jobqueue.values.body_log import CLAIMS_KEPT, BodyLog, as_text


class LogTable(ReportTable):
    model = TaskLog

    def write_logs(self, logs: Sequence[BodyLog]) -> None:
        """
        Write the lines of bodies in place of their earlier ones. Those of an ended or lost claim are written, too.

        Keep the rows of the task's newest claims only: an actor may be polled a million times.
        Locks: rows of this table only.
        """
        if not logs:
            return
        claims = dict(self.db.by_ids({one.task_id for one in logs}).values_list("pk", "claim_number"))
        rows = [
            TaskLog(task_id=one.task_id, claim_number=one.claim_number, dropped=one.dropped, lines=as_text(one.lines))
            for one in sorted(logs, key=lambda one: (one.task_id, one.claim_number))
            if one.claim_number <= claims.get(one.task_id, -1)
        ]
        self.rows.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["task_id", "claim_number"],
            update_fields=["dropped", "lines"],
        )
        if many := [pk for pk, claim_number in claims.items() if claim_number > CLAIMS_KEPT]:
            newest = Subquery(Task.objects.filter(pk=OuterRef("task_id")).values("claim_number"))
            self.rows_of(many).filter(claim_number__lte=newest - CLAIMS_KEPT)._raw_delete(self.db.using)
