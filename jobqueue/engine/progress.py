"""The progress that bodies report. It has a table of its own, so that the row of a running task is not written."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.engine.reports import ReportTable
from jobqueue.models import TaskProgress
from jobqueue.values.records import Progress

REPORTED = ("claim_number", "done", "total", "note", "reported_at")


class ProgressTable(ReportTable):
    model = TaskProgress

    def write_progress(self, reports: Sequence[Progress]) -> None:
        """
        Write the progress of tasks. A report of a claim that was lost since is dropped.

        Locks: rows of this table only, in id order.
        """
        if not reports:
            return
        claims = dict(self.db.by_ids([one.task_id for one in reports]).values_list("pk", "claim_number"))
        now = self.db.now()
        rows = [
            TaskProgress(
                task_id=one.task_id,
                claim_number=one.claim_number,
                done=one.done,
                total=one.total,
                note=one.note,
                reported_at=now,
            )
            for one in sorted(reports, key=lambda one: one.task_id)
            if claims.get(one.task_id) == one.claim_number
        ]
        self.rows.bulk_create(rows, update_conflicts=True, unique_fields=["task_id"], update_fields=REPORTED)
