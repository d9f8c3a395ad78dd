"""Prune: what ended long ago goes away."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import connections

from jobqueue.engine.clock import bound
from jobqueue.engine.tallies import Tallies
from jobqueue.failpoints import reach

EXECUTORS_KEPT_SECONDS = 86_400


class Prune(Tallies):
    def prune(self, limit: int = 1000) -> int:
        """
        Delete ended tasks older than RETENTION, messages first; executors silent, and minutes tallied, a day ago.

        limit: per status. Locks: the rows FOR UPDATE, skipping locked ones, so that a task that is
        being sent to stays until its sender has committed. Returns how many tasks went.
        """
        self.executors.filter(heartbeat__lt=bound(-EXECUTORS_KEPT_SECONDS)).delete()
        self._prune_minutes(limit)
        kept = self.options.retention.items()
        return sum(self.purge(status, seconds, limit) for status, seconds in kept if seconds is not None)

    def purge(self, status: str, kept_seconds: float, limit: int = 1000) -> int:
        """Delete tasks that ended so, and longer ago than that, the oldest first. Locks: as prune()."""
        old = self.tasks.filter(status=status, finished_at__lte=bound(-kept_seconds)).order_by("finished_at")
        features = connections[self.database].features
        if features.has_select_for_update:
            old = old.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
        with self.transaction():
            ids = [row.pk for row in old.only("pk")[:limit]]
            if ids:
                self._delete_mail(ids)
                self.tasks.filter(pk__in=ids)._raw_delete(self.database)
                reach("prune.before")
        if ids:
            reach("prune.after")
        return len(ids)

    def _delete_mail(self, ids: Sequence[UUID]) -> None:
        self.messages.filter(task_id__in=ids)._raw_delete(self.database)
