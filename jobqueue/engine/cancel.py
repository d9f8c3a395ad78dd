"""Cancel: live tasks end by hand, at once or as soon as their executor hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models.functions import Coalesce

from jobqueue.engine.clock import Clock
from jobqueue.engine.mail import Ending, Mail
from jobqueue.outcome import FINAL, CancelReport, Status


class Cancel(Mail):
    def cancel(self, ids: Sequence[UUID]) -> CancelReport:
        """
        Cancel live tasks: queued ones end at once, running ones are told at the next heartbeat.

        `parents` of the answer are to be woken after the commit. Locks: the rows in id order,
        waiting for commits in flight.
        """
        with self.transaction():
            seen = self.lock(ids, wait=True).only("pk", "status", "parent_id", "reported_at")
            live = [row for row in seen if row.status not in FINAL]
            running = [row.pk for row in live if row.status == Status.RUNNING]
            queued = {row.pk: row for row in live if row.status != Status.RUNNING}
            cancelled = self.tasks.filter(pk__in=queued).update(
                status=Status.CANCELLED, cancel_requested_at=Clock(), finished_at=Clock(), wake_at=None
            )
            requested = self.tasks.filter(pk__in=running).update(
                cancel_requested_at=Coalesce("cancel_requested_at", Clock())
            )
            told = self._report(
                [
                    Ending(row.pk, row.parent_id, Status.CANCELLED, None)
                    for row in queued.values()
                    if row.parent_id is not None and row.reported_at is None
                ]
            )
        return CancelReport(
            cancelled=cancelled,
            requested=requested,
            skipped=len(set(ids)) - cancelled - requested,
            parents=frozenset(told),
        )
