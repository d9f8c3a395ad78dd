"""Figures of queues and executors. Counts are exact up to CAP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Max

from jobqueue.api import declared_queues
from jobqueue.engine.clock import now_plus
from jobqueue.engine.engine import Engine
from jobqueue.inspect.queries import CAP, Count, capped, count, of_status
from jobqueue.models import Executor, FallbackHeartbeat, Queue, TaskQuerySet
from jobqueue.records import FINAL, PoolName, Status

MAX_EXECUTORS = 1000
MINUTE_SECONDS = 60
BY_QUEUE = (Status.SCHEDULED, Status.RUNNING, Status.SUSPENDED, Status.FAILED)  # READY has an index by queue


class ExecutorState(StrEnum):
    """What an executor does. Heartbeats decide, not the state in its row."""

    ALIVE = "alive"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    NOT_RESPONDING = "not responding"

    @classmethod
    def of(cls, executor: Executor, silent_seconds: float, timeout_seconds: float) -> ExecutorState:
        match executor.state:
            case Executor.State.STOPPED:
                return cls.STOPPED
            case _ if silent_seconds > timeout_seconds:
                return cls.NOT_RESPONDING
            case Executor.State.PAUSED:
                return cls.PAUSED
            case Executor.State.RUNNING:
                return cls.ALIVE
            case _:
                return cls.STOPPING


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """latency: seconds that the oldest READY task has waited, None without one. executors: those that serve it."""

    name: str
    counts: Mapping[Status, Count]
    latency: float | None
    executors: int
    row: Queue | None
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStats:
    """busy: its running tasks. silent_seconds: since its last heartbeat."""

    row: Executor
    state: ExecutorState
    busy: int
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStats:
    """last_minute: tasks that ended, by status."""

    backend: str
    now: datetime
    queues: Sequence[QueueStats]
    executors: Sequence[ExecutorStats]
    totals: Mapping[Status, Count]
    last_minute: Mapping[Status, Count]

    def in_state(self, state: ExecutorState) -> list[ExecutorStats]:
        return [executor for executor in self.executors if executor.state == state]

    @property
    def alive(self) -> list[ExecutorStats]:
        return self.in_state(ExecutorState.ALIVE)


def read_stats(engine: Engine) -> BackendStats:
    """Read the figures of one backend."""
    now = engine.now()
    executors = list(read_executors(engine, now))
    alive = [executor for executor in executors if executor.state == ExecutorState.ALIVE]
    by_queue: dict[Status, Counter[str]] = {status: _by_queue(engine, status) for status in BY_QUEUE}
    rows = {row.name: row for row in engine.queues.all()}
    names = declared_queues(engine.alias) | rows.keys() | set(engine.queues_in_use())
    names = names.union(*by_queue.values(), *(executor.row.queues for executor in alive))
    queues = [_queue(engine, name, now, by_queue, alive, rows.get(name)) for name in sorted(names or {"default"})]
    return BackendStats(
        backend=engine.alias,
        now=now,
        queues=queues,
        executors=executors,
        totals={
            Status.READY: sum((queue.counts[Status.READY] for queue in queues), Count()),
            **{status: capped(counts.total()) for status, counts in by_queue.items()},
            **{status: count_ended(of_status(engine, status)) for status in FINAL if status is not Status.FAILED},
        },
        last_minute={
            status: count_ended(of_status(engine, status).filter(finished_at__gte=now_plus(-MINUTE_SECONDS)))
            for status in FINAL
        },
    )


def count_ended(rows: TaskQuerySet) -> Count:
    """Count in the order of the index. Without an order the planner may read the table."""
    return count(rows.order_by("-finished_at"))


def _by_queue(engine: Engine, status: Status) -> Counter[str]:
    """Count the first CAP + 1 tasks of a status by queue. No index has both."""
    rows = of_status(engine, status)
    rows = rows.order_by("-finished_at") if status in FINAL else rows
    return Counter(rows.values_list("queue_name", flat=True)[: CAP + 1])


def _queue(
    engine: Engine,
    name: str,
    now: datetime,
    by_queue: Mapping[Status, Counter[str]],
    alive: Sequence[ExecutorStats],
    row: Queue | None,
) -> QueueStats:
    ready = of_status(engine, Status.READY).filter(queue_name=name).values_list("rank", "priority", "enqueued_at")
    waiting = [row for pool in PoolName for row in ready.filter(pool=pool).order_by("rank", "pk")[: CAP + 1]]
    aging = engine.options.aging
    since = min((max(rank + timedelta(seconds=aging * p), at) for rank, p, at in waiting), default=None)
    counts = {Status.READY: capped(len(waiting))}
    for status, numbers in by_queue.items():
        counts[status] = Count(min(numbers[name], CAP), numbers.total() > CAP)
    return QueueStats(
        name=name,
        counts=counts,
        latency=None if since is None else max(0.0, (now - since).total_seconds()),
        executors=sum(not executor.row.queues or name in executor.row.queues for executor in alive),
        row=row,
        is_paused=row is not None and row.is_paused_at(now),
    )


def read_executors(engine: Engine, now: datetime) -> Iterator[ExecutorStats]:
    """Yield the executors of a backend, the last heartbeat first."""
    busy = Counter(of_status(engine, Status.RUNNING).values_list("executor_id", flat=True)[: CAP + 1])
    fallback = FallbackHeartbeat.objects.using(engine.database).values_list("executor_id").annotate(Max("at"))
    fallback_heartbeats = dict(
        fallback.filter(at__lt=now_plus(1.0))
    )  # later ones were written before the clock was set back
    for row in engine.executors.order_by("-heartbeat")[:MAX_EXECUTORS]:
        heartbeat = max(row.heartbeat, fallback_heartbeats.get(row.pk, row.heartbeat))
        silent = max(0.0, (now - heartbeat).total_seconds())
        state = ExecutorState.of(row, silent, engine.options.heartbeat_timeout)
        yield ExecutorStats(row=row, state=state, busy=busy[row.pk], silent_seconds=silent)
