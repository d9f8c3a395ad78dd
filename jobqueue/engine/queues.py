"""Queues: depth, latency, limits and pauses. No statement counts a whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from jobqueue.engine.admissions import ADMITTED_AT_ONCE, REQUESTS_READ
from jobqueue.engine.counting import CAP, RUNNING_CAP, estimate
from jobqueue.engine.database import Part
from jobqueue.engine.heartbeats import alive
from jobqueue.engine.limit_conditions import INDEXED, IS_WAITING
from jobqueue.models import NO_PAUSE, AdmissionRequest, Executor, is_paused
from jobqueue.models.clock import clock_to_compare
from jobqueue.values.counters import Depth, Gauges
from jobqueue.values.records import ClaimRequest, QueueLatency
from jobqueue.values.states import WAITING, LimitKind, Status

QUEUES_READ = 1000
TASKS_READ = 100  # of each queue, in the order of claiming


class Queues(Part):
    """
    The rows of queues, what runs and waits in them, and their limits.

    It has more than 20 methods because a queue's row, its limit and its figures are read together.
    """

    def gauges(self) -> Gauges:
        """
        Return the current figures of a backend.

        Depths are exact up to CAP of each queue and status. Locks: none.
        """
        by_queue: Counter[str] = Counter()
        held: Counter[UUID | None] = Counter()
        for queue_name, executor_id, number in self._running():
            by_queue[queue_name] += number
            held[executor_id] += number
        is_more = by_queue.total() >= RUNNING_CAP
        depths = [self._estimated(depth) if depth.number > CAP else depth for depth in self._waiting()]
        depths += [Depth(name, Status.RUNNING, number, is_more) for name, number in by_queue.items()]
        slots = dict(self._alive().values_list("pk", "slots"))
        return Gauges(
            depths=depths,
            in_flight=by_queue.total(),
            active_workers=sum(min(held[pk], number) for pk, number in slots.items()),
            slots=sum(slots.values()),
            executors=len(slots),
            oldest_ready_seconds={queue.queue_name: queue.latency_seconds for queue in self.queue_latency()},
            oldest_snapshot_seconds=self._oldest_snapshot_seconds(),
        )

    def depths(self) -> list[Depth]:
        """Count the live tasks of each queue and status, of those that wait up to CAP + 1. Locks: none."""
        running: Counter[str] = Counter()
        for queue_name, _executor, number in self._running():
            running[queue_name] += number
        return [*self._waiting(), *(Depth(name, Status.RUNNING, number) for name, number in running.items())]

    def _oldest_snapshot_seconds(self) -> float:
        """Return for how long a transaction has kept dead rows from being removed; 0 if unknown."""
        return 0.0

    def _running(self) -> Iterable[tuple[str, UUID | None, int]]:
        """Count the running tasks by queue and executor."""
        rows = self.db.tasks.running().order_by("executor_id", "queue_name", "pk")[:RUNNING_CAP]
        return [(*key, number) for key, number in Counter(rows.values_list("queue_name", "executor_id")).items()]

    def _waiting(self) -> Iterable[Depth]:
        """Count the waiting tasks of each queue and status, up to CAP + 1."""
        for status in (Status.READY, Status.BLOCKED, Status.AWAITING_CODE, *WAITING):
            rows = self.db.tasks.filter(status=status)
            for name in rows.order_by("queue_name").values_list("queue_name", flat=True).distinct()[:QUEUES_READ]:
                yield Depth(name, status, rows.filter(queue_name=name)[: CAP + 1].count())

    def _estimated(self, depth: Depth) -> Depth:
        number = estimate(self.db.tasks.filter(queue_name=depth.queue_name, status=depth.status))
        return Depth(depth.queue_name, depth.status, max(number, depth.number), is_estimate=True)

    def queue_latency(self) -> list[QueueLatency]:
        """
        Return the latency of each queue in use, and whether a live executor serves it.

        In use: it has READY tasks, or, while no executor is alive, tasks that are due or RUNNING. Of each queue the
        next hundred in the order of claiming are read: older tasks behind them have a lower priority. Locks: none.
        """
        served = list(self._alive().filter(heartbeat__state=Executor.State.RUNNING).values_list("queues", flat=True))
        queues = [
            QueueLatency(name, seconds, paused, any(not names or name in names for names in served))
            for name, seconds, paused in self._with_ready_tasks()
        ]
        stranded = self._stranded({queue.queue_name for queue in queues})
        return sorted([*queues, *stranded], key=attrgetter("queue_name"))

    def notify(self, queues: Iterable[str]) -> None:
        """Notify executors that these queues have work, if the database can."""

    def paused_executors(self) -> list[list[str]]:
        """Return the queues of each live executor that is paused. An empty list means every queue."""
        return list(self._alive().filter(heartbeat__state=Executor.State.PAUSED).values_list("queues", flat=True))

    def _with_ready_tasks(self) -> Iterable[tuple[str, float, bool]]:
        """Return the name of each queue with READY tasks, its latency, and whether it is paused."""
        now, paused = self.db.now(), self.paused()
        return [
            (name, waited, name in paused)
            for name in self.queues_in_use()[:QUEUES_READ]
            if (waited := self._waited(name, now)) is not None
        ]

    def _stranded(self, in_use: Collection[str]) -> list[QueueLatency]:
        """Find the other queues with work, if no executor is alive. Paused and stopping executors are alive."""
        if self._alive().exists():
            return []
        waiting = self.db.tasks.filter(status__in=WAITING, wake_at__isnull=False, wake_at__lte=clock_to_compare())
        due = waiting.order_by("backend", "wake_at").values_list("queue_name", "wake_at")[:TASKS_READ]
        now = self.db.now()
        waited = {name: (now - at).total_seconds() for name, at in reversed(due) if at}
        running = self.db.tasks.running().order_by("executor_id", "queue_name", "pk")
        waited |= {name: waited.get(name, 0.0) for name in running.values_list("queue_name", flat=True)[:TASKS_READ]}
        paused = self.paused() if waited else set()
        return [
            QueueLatency(name, seconds, name in paused, is_served=False)
            for name, seconds in waited.items()
            if name not in in_use
        ]

    def _alive(self) -> QuerySet[Executor]:
        return self.db.executors.filter(alive(self.db.options.heartbeat_timeout))

    def _waited(self, queue_name: str, now: datetime) -> float | None:
        rows = self.db.tasks.ready().filter(queue_name=queue_name).order_by("rank", "pk")
        following = rows.values_list("rank", "priority")[:TASKS_READ]
        aging = self.db.options.aging
        return max(((now - rank).total_seconds() - priority * aging for rank, priority in following), default=None)

    def queues_in_use(self) -> list[str]:
        """Name the queues that hold READY tasks, for an executor that serves every queue."""
        return sorted(self.db.tasks.ready().order_by().values_list("queue_name", flat=True).distinct())

    def has_no_work_left(self, queues: Sequence[str] | None, within_seconds: float) -> bool:
        """
        Return whether these queues (None: all) have no tasks that are ready, running, or due within these seconds.

        No admission request may be due within these seconds either that may make a BLOCKED task of theirs READY.
        Of a paused queue only the running tasks count.
        """
        rows = self.db.tasks if queues is None else self.db.tasks.filter(queue_name__in=queues)
        open_rows = rows.exclude(queue_name__in=self.paused())
        soon = open_rows.filter(status__in=WAITING, wake_at__lte=clock_to_compare(after=within_seconds))
        if open_rows.ready().exists() or rows.running().exists() or soon.exists():
            return False
        due = AdmissionRequest.objects.using(self.db.using).filter(
            backend=self.db.backend, due_at__lte=clock_to_compare(after=within_seconds)
        )
        paused = self.paused()
        return not any(
            name not in paused and (queues is None or name in queues)
            for key in set(due.order_by("due_at").values_list("kind", "key")[:REQUESTS_READ])
            for name in self._next_of_limit(*key)
        )

    def _next_of_limit(self, kind: str, key: str) -> Iterable[str]:
        """Return the queues of the BLOCKED tasks that the next look at a key may admit."""
        if kind not in INDEXED:
            return ()
        waiting = self.db.tasks.filter(INDEXED[LimitKind(kind)], IS_WAITING[LimitKind(kind)], **{f"{kind}_key": key})
        return waiting.order_by("rank", "pk").values_list("queue_name", flat=True)[:ADMITTED_AT_ONCE]

    # --- limits and pauses

    def change(self, name: str, **columns: Any) -> None:
        """Change the row of a queue, or make it. Raises LockTimeout. Locks: the row."""
        with self.db.bounded(f"the queue {name!r}"):
            self.db.queues.update_or_create(backend=self.db.backend, name=name, defaults=columns)

    def resume(self, name: str) -> None:
        """End the pause of a queue, if it has one. Raises LockTimeout. Locks: the row."""
        with self.db.bounded(f"the queue {name!r}"):
            self.db.queues.filter(name=name).update(**NO_PAUSE)

    def limited_queues(self) -> list[str]:
        """Name the queues that have a max_running."""
        return sorted(self.db.queues.filter(max_running__isnull=False).values_list("name", flat=True))

    def within_limits(self, request: ClaimRequest) -> tuple[ClaimRequest, frozenset[str]]:
        """
        Reduce a request to the free places of limited queues. Return the queues that are skipped, too.

        The running tasks are counted in a later statement than the lock. In a single statement, two executors would
        both use the snapshot from before their claims. Rows that others have locked are skipped, so that no executor
        delays the commits of another.
        Locks: the rows of limited queues FOR NO KEY UPDATE, in order of name, until the claim commits.
        """
        rows = self.lock_queues(request.limited)
        limits = {name: limit for name, limit in rows.items() if limit is not None}
        running = self.count_running(limits) if limits else {}
        free = {name: max(0, limit - running.get(name, 0)) for name, limit in limits.items()}
        free = {name: min(count, request.max_per_queue.get(name, count)) for name, count in free.items()}
        allowed = replace(request, max_per_queue={**request.max_per_queue, **free}, limited=list(rows))
        return allowed, frozenset(request.limited) - rows.keys()

    def lock_queues(self, names: Collection[str]) -> dict[str, int | None]:
        rows = self.db.with_lock(self.db.queues.filter(name__in=names).order_by("name"))
        return dict(rows.values_list("name", "max_running"))

    def count_running(self, limits: Mapping[str, int]) -> dict[str, int]:
        """Count the running tasks of some queues, up to a maximum for each."""
        running = self.db.tasks.running()
        return {name: running.filter(queue_name=name)[:limit].count() for name, limit in limits.items()}

    def paused(self) -> set[str]:
        return set(self.db.queues.filter(is_paused(clock_to_compare())).values_list("name", flat=True))

    def full(self) -> set[str]:
        """Name the queues that have reached their max_running."""
        rows = self.db.queues.filter(max_running__isnull=False).values_list("name", "max_running")
        limits = {name: limit for name, limit in rows if limit is not None}
        running = self.count_running(limits) if limits else {}
        return {name for name, limit in limits.items() if running.get(name, 0) >= limit}
