"""Requeue: tasks that ended badly get another life, by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import IntegrityError, transaction

from jobqueue.engine.clock import Clock, rank_from
from jobqueue.engine.enqueue import KEY_TRIES, key_taken
from jobqueue.engine.ground import Ground
from jobqueue.engine.mail import ENDED_BADLY
from jobqueue.models import Task
from jobqueue.outcome import RequeueReport, Status


class Requeue(Ground):
    def requeue(self, ids: Collection[UUID], *, wait: bool = True) -> RequeueReport:
        """
        Put FAILED and CANCELLED tasks back READY, with all their attempts, their state and inbox.

        A task whose key a live task holds stays as it is. Locks: the rows in id order; those that somebody else
        holds are left `busy` unless `wait`. Waits for a concurrent insert of the same key.
        """
        with self.transaction():
            seen = list(self.lock(ids, wait=wait).only("pk", "status", "key"))
            busy = frozenset[UUID]() if wait else self.busy(ids, seen)
            rows = [row for row in seen if row.status in ENDED_BADLY]
            for _ in range(KEY_TRIES):
                free = self._with_free_keys(rows)
                try:
                    with transaction.atomic(using=self.database):
                        requeued = self._requeue_locked(free)
                except IntegrityError:  # somebody else took a key in between; the next look finds it
                    continue
                skipped = len(set(ids) - busy) - len(rows)
                return RequeueReport(requeued=requeued, key_taken=len(rows) - requeued, skipped=skipped, busy=busy)
        raise key_taken(next(row.key for row in rows if row.key is not None))

    def _with_free_keys(self, rows: Sequence[Task]) -> list[UUID]:
        """Of tasks that ended: those without a key, and the first of each key that no live task holds."""
        keys = {row.key for row in rows if row.key is not None}
        taken = set(self.tasks.live().filter(key__in=keys).values_list("key", flat=True)) if keys else set()
        free = []
        for row in rows:
            if row.key not in taken:
                free.append(row.pk)
                taken |= {row.key} - {None}
        return free

    def _requeue_locked(self, ids: Sequence[UUID]) -> int:
        return self.tasks.filter(pk__in=ids, status__in=ENDED_BADLY).update(
            status=Status.READY,
            rank=rank_from(Clock(), self.options.aging),
            attempts=0,
            lost_count=0,
            wake_at=None,
            expires_at=None,
            cancel_requested_at=None,
            finished_at=None,
            return_value=None,
        )
