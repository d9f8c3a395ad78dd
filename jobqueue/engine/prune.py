"""Prune: what ended long ago goes away."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from jobqueue.engine.clock import bound
from jobqueue.engine.tallies import Tallies
from jobqueue.failpoints import reach
from jobqueue.models import SpareHeartbeat

EXECUTORS_KEPT_SECONDS = 86_400


class Prune(Tallies):
    def prune(self, limit: int = 1000) -> int:
        """
        Delete ended tasks older than RETENTION, their messages first.

        Executors, spare heartbeats and counted minutes are deleted after a day.

        limit: per status. Nothing is done while somebody else is at it. Locks: the rows FOR UPDATE, skipping locked
        ones, so that a task that is being sent to stays until its sender has committed. Returns how many tasks went.
        """
        with self.transaction():
            if not self._may_prune():
                return 0
            silent = self.unlocked(self.executors.filter(heartbeat__lt=bound(-EXECUTORS_KEPT_SECONDS)))
            self.executors.filter(pk__in=[row.pk for row in silent.only("pk")]).delete()
            SpareHeartbeat.objects.using(self.database).filter(at__lt=bound(-EXECUTORS_KEPT_SECONDS)).delete()
            self._prune_minutes(limit)
            kept = self.options.retention.items()
            count = sum(self._purge(status, seconds, limit) for status, seconds in kept if seconds is not None)
            if count:
                reach("prune.before")
        if count:
            reach("prune.after")
        return count

    def purge(self, status: str, kept_seconds: float, limit: int = 1000) -> int:
        """Delete tasks that ended so, and longer ago than that, the oldest first. Locks: as prune()."""
        with self.transaction():
            return self._purge(status, kept_seconds, limit)

    def _may_prune(self) -> bool:
        """Whether nobody else prunes; where nothing can say so, two delete different rows, or one waits."""
        return True

    def _purge(self, status: str, kept_seconds: float, limit: int) -> int:
        old = self.tasks.filter(status=status, finished_at__lte=bound(-kept_seconds)).order_by("finished_at")
        ids = [row.pk for row in self.unlocked(old).only("pk")[:limit]]
        if ids:
            self._delete_mail(ids)
            self.tasks.filter(pk__in=ids)._raw_delete(self.database)
        return len(ids)

    def _delete_mail(self, ids: Sequence[UUID]) -> None:
        self.messages.filter(task_id__in=ids)._raw_delete(self.database)
