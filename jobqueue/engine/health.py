"""Health: whether the queues drain."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from operator import attrgetter

from django.db.models import QuerySet

from jobqueue.engine.claim import Claim
from jobqueue.engine.clock import bound
from jobqueue.models import Executor
from jobqueue.records import WAITING, QueueLatency

QUEUES_READ = 1000  # queues looked at
TASKS_READ = 100  # of each, the next to be claimed


class Health(Claim):
    def draining(self) -> list[QueueLatency]:
        """
        Say of each queue in use how long its tasks have waited and whether somebody serves it.

        In use: it holds READY tasks; or, while no executor is alive to bring them on, some that are due or RUNNING.
        Of each queue the next hundred in the order of claiming are read: an older one behind them has the lower
        priority to thank for it. Locks: none.
        """
        found = self._draining()
        return sorted([*found, *self._stranded({queue.queue_name for queue in found})], key=attrgetter("queue_name"))

    def quiet(self) -> list[list[str]]:
        """Give the queues of each executor that is alive and was told to claim nothing; [] serves every queue."""
        return list(self._alive().filter(state=Executor.State.QUIET).values_list("queues", flat=True))

    def _draining(self) -> list[QueueLatency]:
        now = self.now()
        alive = self._alive().filter(state=Executor.State.RUNNING)
        served = list(alive.values_list("queues", flat=True))
        paused = self._paused()
        return [
            QueueLatency(
                queue_name=name,
                oldest_seconds=max(self._waited(rank, priority, now) for rank, priority in following),
                is_paused=name in paused,
                is_served=any(not names or name in names for names in served),
            )
            for name in self.queues_in_use()[:QUEUES_READ]
            if (following := self._next(name))
        ]

    def _stranded(self, known: Collection[str]) -> list[QueueLatency]:
        """Find other queues whose tasks wait for any executor at all; who is quiet or draining still does as much."""
        if self._alive().exists():
            return []
        alarms = self.tasks.filter(status__in=WAITING, wake_at__isnull=False, wake_at__lte=bound())
        due = alarms.order_by("backend", "wake_at").values_list("queue_name", "wake_at")[:TASKS_READ]
        now = self.now()
        waited = {name: (now - at).total_seconds() for name, at in reversed(due) if at}
        running = self.tasks.running().order_by("executor_id", "queue_name", "pk")
        waited |= {name: waited.get(name, 0.0) for name in running.values_list("queue_name", flat=True)[:TASKS_READ]}
        paused = self._paused() if waited else set()
        return [
            QueueLatency(queue_name=name, oldest_seconds=seconds, is_paused=name in paused, is_served=False)
            for name, seconds in waited.items()
            if name not in known
        ]

    def _alive(self) -> QuerySet[Executor]:
        beating = self.executors.filter(heartbeat__gt=bound(-self.options.heartbeat_timeout))
        return beating.exclude(state=Executor.State.STOPPED)

    def _next(self, queue_name: str) -> list[tuple[datetime, int]]:
        rows = self.tasks.ready().filter(queue_name=queue_name).order_by("rank", "pk")
        return list(rows.values_list("rank", "priority")[:TASKS_READ])

    def _waited(self, rank: datetime, priority: int, now: datetime) -> float:
        return (now - rank).total_seconds() - priority * self.options.aging
