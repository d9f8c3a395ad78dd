"""Wake: SCHEDULED and SUSPENDED tasks become READY, by the clock, after a message, or by the sweep."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Case, Exists, F, Min, OuterRef, Q, When

from jobqueue.engine.clock import Clock, now_plus, rank_from
from jobqueue.engine.portable.database import Part
from jobqueue.failpoints import failpoint
from jobqueue.records import WAITING, Status, WakeResult

logger = logging.getLogger(__name__)


class Waker(Part):
    def wake_due(self, limit: int = 1000) -> WakeResult:
        """
        Make SCHEDULED and SUSPENDED tasks READY when their wake_at has passed.

        They rank by their wake_at. Locks: the rows, skipping locked ones.
        """
        alarms = self.db.tasks.filter(status__in=WAITING, wake_at__isnull=False)
        due = alarms.filter(wake_at__lte=now_plus())
        is_over = Q(timeout_at__isnull=True) | Q(timeout_at__lte=now_plus())
        with self.db.transaction():
            ids = list(due.order_by("wake_at").values_list("pk", flat=True)[:limit])
            locked = [row.pk for row in self.db.lock(ids).only("pk")] if ids else []
            count = due.filter(pk__in=locked).update(
                status=Status.READY,
                rank=rank_from(F("wake_at"), self.db.options.aging),
                wake_at=None,
                timed_out=Case(When(is_over, status=Status.SUSPENDED, then=True), default=F("timed_out")),
            )
            if count:
                failpoint("due.before")
        following = alarms.aggregate(at=Min("wake_at"))["at"]
        seconds = None if following is None else (following - self.db.now()).total_seconds()
        return WakeResult(count=count, next_seconds=seconds)

    def wake(self, ids: Iterable[UUID]) -> int:
        """
        Make SUSPENDED tasks READY after the commit that sent them messages. Return how many.

        It locks the tasks in id order, waits for their commits, and reads afterwards. Otherwise a task could seem to be
        RUNNING in an older snapshot.
        """
        with self.db.transaction():
            return self.wake_locked([row.pk for row in self.db.lock(ids, wait=True).only("pk")])

    def wake_locked(self, ids: Collection[UUID]) -> int:
        if not ids:
            return 0
        suspended = self.db.tasks.suspended().filter(pk__in=ids)
        return suspended.update(status=Status.READY, rank=rank_from(Clock(), self.db.options.aging), wake_at=None)

    def wake_or_defer(self, ids: Collection[UUID]) -> None:
        """Wake tasks. If the database fails, the sweep wakes them: the caller's own work is committed."""
        try:
            failpoint("wake.before")
            self.wake(ids)
            failpoint("wake.after")
        except DatabaseError as error:
            logger.info("wake.deferred backend=%s tasks=%d error=%s", self.db.backend, len(ids), error)

    def sweep(self, limit: int = 1000) -> int:
        """
        Wake SUSPENDED tasks that have unread messages, in case a wake-up was lost.

        For a task that left messages unread, only newer messages count; it wakes by its wake_at.
        Locks: the rows, skipping locked ones.
        """
        ids = self._suspended_with_messages(limit)
        if not ids:
            return 0
        with self.db.transaction():
            return self.wake_locked([row.pk for row in self.db.lock(ids).only("pk")])

    def _suspended_with_messages(self, limit: int) -> list[UUID]:
        unread = self.db.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        newer = unread.filter(sent_at__gt=OuterRef("last_attempted_at"))
        stuck = self.db.tasks.suspended().filter(Q(Exists(unread), unread_polls=0) | Q(Exists(newer)))
        return list(stuck.order_by("pk").values_list("pk", flat=True)[:limit])
