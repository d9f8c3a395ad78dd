"""Prune: delete tasks that ended long ago."""

from __future__ import annotations

from jobqueue.engine.clock import now_plus
from jobqueue.engine.portable.counters import Counters
from jobqueue.engine.portable.database import Database, Part
from jobqueue.engine.portable.messages import Messages
from jobqueue.failpoints import failpoint
from jobqueue.models import FallbackHeartbeat

EXECUTORS_KEPT_SECONDS = 86_400


class Pruner(Part):
    def __init__(self, db: Database, messages: Messages, counters: Counters) -> None:
        super().__init__(db)
        self.messages = messages
        self.counters = counters

    def prune(self, limit: int = 1000) -> int:
        """
        Delete ended tasks older than RETENTION, their messages first.

        Executors, fallback heartbeats and counted minutes are deleted after a day.

        Return the number of deleted tasks. limit: per status. Does nothing while another session prunes.
        Locks: the rows FOR UPDATE, skipping locked ones: a task stays while a sender locks it.
        """
        with self.db.transaction():
            if not self._may_prune():
                return 0
            silent = self.db.lock_for_update(self.db.executors.filter(heartbeat__lt=now_plus(-EXECUTORS_KEPT_SECONDS)))
            self.db.executors.filter(pk__in=[row.pk for row in silent.only("pk")]).delete()
            FallbackHeartbeat.objects.using(self.db.using).filter(at__lt=now_plus(-EXECUTORS_KEPT_SECONDS)).delete()
            self.counters.prune_minutes(limit)
            kept = self.db.options.retention.items()
            count = sum(self._purge(status, seconds, limit) for status, seconds in kept if seconds is not None)
            if count:
                failpoint("prune.before")
        if count:
            failpoint("prune.after")
        return count

    def prune_status(self, status: str, kept_seconds: float, limit: int = 1000) -> int:
        """Delete tasks that ended with a status, and before `kept_seconds`, the oldest first. Locks: as prune()."""
        with self.db.transaction():
            return self._purge(status, kept_seconds, limit)

    def _may_prune(self) -> bool:
        """Whether no other session prunes. Without such a lock, two sessions delete different rows, or one waits."""
        return True

    def _purge(self, status: str, kept_seconds: float, limit: int) -> int:
        old = self.db.tasks.filter(status=status, finished_at__lte=now_plus(-kept_seconds)).order_by("finished_at")
        ids = [row.pk for row in self.db.lock_for_update(old).only("pk")[:limit]]
        if ids:
            self.messages.delete_of(ids)
            self.db.tasks.filter(pk__in=ids)._raw_delete(self.db.using)
        return len(ids)
