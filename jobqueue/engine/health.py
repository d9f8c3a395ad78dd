"""Health: whether the queues drain."""

from __future__ import annotations

from datetime import datetime

from jobqueue.engine.claim import Claim
from jobqueue.engine.clock import bound
from jobqueue.models import Executor
from jobqueue.outcome import Draining

QUEUES_READ = 1000  # queues looked at
TASKS_READ = 100  # of each, the next to be claimed


class Health(Claim):
    def draining(self) -> list[Draining]:
        """
        Say of each queue that holds READY tasks how long they have waited and whether somebody serves it.

        Of each queue the next hundred in the order of claiming are read: an older one behind them has the lower
        priority to thank for it. Locks: none.
        """
        now = self.now()
        alive = self.executors.filter(
            state=Executor.State.RUNNING, heartbeat__gt=bound(-self.options.heartbeat_timeout)
        )
        served = list(alive.values_list("queues", flat=True))
        paused = self._paused()
        return [
            Draining(
                queue_name=name,
                oldest_seconds=max(self._waited(rank, priority, now) for rank, priority in following),
                is_paused=name in paused,
                is_served=any(not names or name in names for names in served),
            )
            for name in self.queues_in_use()[:QUEUES_READ]
            if (following := self._next(name))
        ]

    def _next(self, queue_name: str) -> list[tuple[datetime, int]]:
        rows = self.tasks.ready().filter(queue_name=queue_name).order_by("rank", "pk")
        return list(rows.values_list("rank", "priority")[:TASKS_READ])

    def _waited(self, rank: datetime, priority: int, now: datetime) -> float:
        return (now - rank).total_seconds() - priority * self.options.aging
