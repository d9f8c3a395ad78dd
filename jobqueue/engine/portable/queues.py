"""Queues: their depth, latency and executors. No statement counts a whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from django.db.models import QuerySet

from jobqueue.engine.clock import now_plus
from jobqueue.engine.portable.claim import Claimer
from jobqueue.engine.portable.database import Database, Part
from jobqueue.engine.portable.limits import Limits
from jobqueue.metrics import Depth, Gauges
from jobqueue.models import Executor, TaskQuerySet
from jobqueue.records import WAITING, QueueLatency, Status

MAX_COUNTED = 10_000  # tasks of a queue and status; above, the depth is an estimate
QUEUES_READ = 1000
TASKS_READ = 100  # of each queue, in the order of claiming
RUNNING_READ = 50_000  # of all queues together: no index has the queue first


class Queues(Part):
    def __init__(self, db: Database, claimer: Claimer, limits: Limits) -> None:
        super().__init__(db)
        self.claimer = claimer
        self.limits = limits

    def gauges(self) -> Gauges:
        """
        Return the current figures of a backend.

        Depths are exact up to MAX_COUNTED of each queue and status. Locks: none.
        """
        running = self._running()
        by_queue: Counter[str] = Counter()
        held: Counter[UUID | None] = Counter()
        for queue_name, executor_id, number in running:
            by_queue[queue_name] += number
            held[executor_id] += number
        is_more = by_queue.total() >= RUNNING_READ
        depths = [
            *(Depth(queue_name=name, status=status, number=number) for name, status, number in self._depths()),
            *(
                Depth(queue_name=name, status=Status.RUNNING, number=number, is_estimate=is_more)
                for name, number in by_queue.items()
            ),
        ]
        slots = dict(self._alive().values_list("pk", "slots"))
        return Gauges(
            depths=[self._estimated(depth) if depth.number > MAX_COUNTED else depth for depth in depths],
            in_flight=by_queue.total(),
            active_workers=sum(min(held[pk], number) for pk, number in slots.items()),
            slots=sum(slots.values()),
            executors=len(slots),
            oldest_ready_seconds={queue.queue_name: queue.latency_seconds for queue in self.queue_latency()},
            oldest_snapshot_seconds=self._oldest_snapshot_seconds(),
        )

    def _oldest_snapshot_seconds(self) -> float:
        """Return for how long a transaction has kept dead rows from being removed; 0 if unknown."""
        return 0.0

    def _running(self) -> Iterable[tuple[str, UUID | None, int]]:
        """Count the running tasks by queue and executor."""
        rows = (
            self.db.tasks.running().order_by("executor_id", "queue_name", "pk").values_list("queue_name", "executor_id")
        )
        return [(*key, number) for key, number in Counter(rows[:RUNNING_READ]).items()]

    def _depths(self) -> Iterable[tuple[str, Status, int]]:
        """Count the waiting tasks of each queue and status, up to MAX_COUNTED + 1."""
        for status in (Status.READY, *WAITING):
            rows = self.db.tasks.filter(status=status)
            for name in rows.order_by("queue_name").values_list("queue_name", flat=True).distinct()[:QUEUES_READ]:
                yield name, status, rows.filter(queue_name=name)[: MAX_COUNTED + 1].count()

    def _estimated(self, depth: Depth) -> Depth:
        if depth.status is Status.RUNNING:
            return depth
        number = self._estimate(self.db.tasks.filter(queue_name=depth.queue_name, status=depth.status))
        return Depth(
            queue_name=depth.queue_name, status=depth.status, number=max(number, depth.number), is_estimate=True
        )

    def _estimate(self, rows: TaskQuerySet) -> int:
        """Return the database's estimate of a number of rows; 0 if it has none."""
        return 0

    def queue_latency(self) -> list[QueueLatency]:
        """
        Return the latency of each queue in use, and whether a live executor serves it.

        In use: it has READY tasks, or, while no executor is alive, tasks that are due or RUNNING. Of each queue the
        next hundred in the order of claiming are read: older tasks behind them have a lower priority. Locks: none.
        """
        queues = self._with_ready_tasks()
        stranded = self._stranded({queue.queue_name for queue in queues})
        return sorted([*queues, *stranded], key=attrgetter("queue_name"))

    def notify(self, queues: Iterable[str]) -> None:
        """Notify executors that these queues have work, if the database can."""

    def paused_executors(self) -> list[list[str]]:
        """Return the queues of each live executor that is paused. An empty list means every queue."""
        return list(self._alive().filter(state=Executor.State.PAUSED).values_list("queues", flat=True))

    def _with_ready_tasks(self) -> list[QueueLatency]:
        now = self.db.now()
        alive = self._alive().filter(state=Executor.State.RUNNING)
        served = list(alive.values_list("queues", flat=True))
        paused = self.limits.paused()
        return [
            QueueLatency(
                queue_name=name,
                latency_seconds=max(self._waited(rank, priority, now) for rank, priority in following),
                is_paused=name in paused,
                is_served=any(not names or name in names for names in served),
            )
            for name in self.claimer.queues_in_use()[:QUEUES_READ]
            if (following := self._next(name))
        ]

    def _stranded(self, known: Collection[str]) -> list[QueueLatency]:
        """Find the other queues with work, if no executor is alive. Paused and stopping executors are alive."""
        if self._alive().exists():
            return []
        alarms = self.db.tasks.filter(status__in=WAITING, wake_at__isnull=False, wake_at__lte=now_plus())
        due = alarms.order_by("backend", "wake_at").values_list("queue_name", "wake_at")[:TASKS_READ]
        now = self.db.now()
        waited = {name: (now - at).total_seconds() for name, at in reversed(due) if at}
        running = self.db.tasks.running().order_by("executor_id", "queue_name", "pk")
        waited |= {name: waited.get(name, 0.0) for name in running.values_list("queue_name", flat=True)[:TASKS_READ]}
        paused = self.limits.paused() if waited else set()
        return [
            QueueLatency(queue_name=name, latency_seconds=seconds, is_paused=name in paused, is_served=False)
            for name, seconds in waited.items()
            if name not in known
        ]

    def _alive(self) -> QuerySet[Executor]:
        recent = self.db.executors.filter(heartbeat__gt=now_plus(-self.db.options.heartbeat_timeout))
        return recent.exclude(state=Executor.State.STOPPED)

    def _next(self, queue_name: str) -> list[tuple[datetime, int]]:
        rows = self.db.tasks.ready().filter(queue_name=queue_name).order_by("rank", "pk")
        return list(rows.values_list("rank", "priority")[:TASKS_READ])

    def _waited(self, rank: datetime, priority: int, now: datetime) -> float:
        return (now - rank).total_seconds() - priority * self.db.options.aging
