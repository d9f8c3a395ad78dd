"""Gauges: how deep the queues are and who works on them, without ever counting a whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from jobqueue.engine.health import QUEUES_READ, Health
from jobqueue.models import TaskQuerySet
from jobqueue.records import WAITING, Status
from jobqueue.tally import Depth, Gauges

COUNTED_MOST = 10_000  # of a queue and status; above, the depth is an estimate
RUNNING_READ = 50_000  # of all queues together, which no index knows apart


class Gauge(Health):
    def gauges(self) -> Gauges:
        """
        Say how a backend stands now.

        Depths are exact up to COUNTED_MOST of each queue and status. Locks: none.
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
            depths=[self._estimated(depth) if depth.number > COUNTED_MOST else depth for depth in depths],
            in_flight=by_queue.total(),
            active_workers=sum(min(held[pk], number) for pk, number in slots.items()),
            slots=sum(slots.values()),
            executors=len(slots),
            oldest_ready_seconds={queue.queue_name: queue.oldest_seconds for queue in self.draining()},
            oldest_snapshot_seconds=self._oldest_snapshot_seconds(),
        )

    def _oldest_snapshot_seconds(self) -> float:
        """Say for how long the database has kept dead rows for somebody; 0 where it cannot say."""
        return 0.0

    def _running(self) -> Iterable[tuple[str, UUID | None, int]]:
        """Say how many tasks of which queue each executor holds."""
        rows = self.tasks.running().order_by("executor_id", "queue_name", "pk").values_list("queue_name", "executor_id")
        return [(*key, number) for key, number in Counter(rows[:RUNNING_READ]).items()]

    def _depths(self) -> Iterable[tuple[str, Status, int]]:
        """Count what waits, up to one more than COUNTED_MOST."""
        for status in (Status.READY, *WAITING):
            rows = self.tasks.filter(status=status)
            for name in rows.order_by("queue_name").values_list("queue_name", flat=True).distinct()[:QUEUES_READ]:
                yield name, status, rows.filter(queue_name=name)[: COUNTED_MOST + 1].count()

    def _estimated(self, depth: Depth) -> Depth:
        if depth.status is Status.RUNNING:
            return depth
        number = self._estimate(self.tasks.filter(queue_name=depth.queue_name, status=depth.status))
        return Depth(
            queue_name=depth.queue_name, status=depth.status, number=max(number, depth.number), is_estimate=True
        )

    def _estimate(self, rows: TaskQuerySet) -> int:
        """Ask the database how many it believes there are; 0 where it cannot say."""
        return 0
