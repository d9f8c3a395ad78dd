"""Requeue: FAILED and CANCELLED tasks run again, on request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import IntegrityError, transaction

from jobqueue.engine.clock import Clock, rank_from
from jobqueue.engine.portable.database import Part
from jobqueue.engine.portable.messages import UNSUCCESSFUL
from jobqueue.models import Task
from jobqueue.records import RequeueReport, Status


class Requeuer(Part):
    def requeue(self, ids: Collection[UUID], *, wait: bool = True) -> RequeueReport:
        """
        Put FAILED and CANCELLED tasks back READY, with all their attempts, their state and inbox.

        A task whose key a live task holds stays unchanged. Locks: the rows in id order. Rows locked by other sessions
        are `busy` unless `wait`. Waits for a concurrent insert of the same key.
        """
        with self.db.transaction():
            seen = list(self.db.lock(ids, wait=wait).only("pk", "status", "key"))
            busy = frozenset[UUID]() if wait else self.db.locked_elsewhere(ids, seen)
            rows = [row for row in seen if row.status in UNSUCCESSFUL]
            free = self._with_free_keys(rows)
            requeued = self._requeue_free(free)
        skipped = len(set(ids) - busy) - len(rows)
        return RequeueReport(requeued=requeued, key_taken=len(rows) - requeued, skipped=skipped, busy=busy)

    def _with_free_keys(self, rows: Sequence[Task]) -> list[UUID]:
        """Return the tasks without a key, and the first task of each key that no live task holds."""
        keys = {row.key for row in rows if row.key is not None}
        taken = set(self.db.tasks.live().filter(key__in=keys).values_list("key", flat=True)) if keys else set()
        free = []
        for row in rows:
            if row.key not in taken:
                free.append(row.pk)
                taken |= {row.key} - {None}
        return free

    def _requeue_free(self, ids: Sequence[UUID]) -> int:
        """Requeue locked tasks. On a key conflict, retry in halves, so that only conflicting tasks stay unchanged."""
        try:
            with transaction.atomic(using=self.db.using):
                return self._requeue_locked(ids)
        except IntegrityError:
            if len(ids) == 1:
                return 0
        half = len(ids) // 2
        return self._requeue_free(ids[:half]) + self._requeue_free(ids[half:])

    def _requeue_locked(self, ids: Sequence[UUID]) -> int:
        return self.db.tasks.filter(pk__in=ids, status__in=UNSUCCESSFUL).update(
            status=Status.READY,
            rank=rank_from(Clock(), self.db.options.aging),
            attempts=0,
            executor_losses=0,
            wake_at=None,
            expires_at=None,
            cancel_requested_at=None,
            finished_at=None,
            return_value=None,
        )
