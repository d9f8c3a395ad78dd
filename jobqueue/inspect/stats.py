"""The figures of `status`: how many, how old, who is alive. Counts are exact up to CAP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Max

from jobqueue.api import declared_queues
from jobqueue.engine.base import Engine
from jobqueue.engine.clock import bound
from jobqueue.inspect.queries import CAP, of_status
from jobqueue.models import Executor, Queue, SpareHeartbeat, TaskQuerySet
from jobqueue.records import FINAL, Status

EXECUTORS = 1000  # executors read
MINUTE_SECONDS = 60
BY_QUEUE = (Status.SCHEDULED, Status.RUNNING, Status.SUSPENDED, Status.FAILED)  # READY ones by an index of queues


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tasks; at least so many where more were not looked at."""

    number: int = 0
    is_more: bool = False

    def __str__(self) -> str:
        if self.is_more:
            return f"{self.number:,}+" if self.number else "?"
        return f"{self.number:,}"

    def __add__(self, other: Count) -> Count:
        return Count(self.number + other.number, self.is_more or other.is_more)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """latency: seconds that the oldest READY task has waited, None without one. serving: executors alive for it."""

    name: str
    counts: Mapping[Status, Count]
    latency: float | None
    serving: int
    row: Queue | None
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFigures:
    """busy: tasks that it holds."""

    row: Executor
    state: str
    busy: int
    silent_seconds: float

    @property
    def is_serving(self) -> bool:
        return self.state == "alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One backend. last_minute: how many ended, and how."""

    backend: str
    now: datetime
    queues: Sequence[QueueFigures]
    executors: Sequence[ExecutorFigures]
    totals: Mapping[Status, Count]
    last_minute: Mapping[Status, Count]
    serving: Sequence[ExecutorFigures] = field(default=())

    @property
    def has_quiet(self) -> bool:
        """Whether an executor lives that was told to claim nothing."""
        return any(executor.state == "quiet" for executor in self.executors)


def figures(engine: Engine) -> Figures:
    """Read the figures of one backend."""
    now = engine.now()
    executors = list(executors_of(engine, now))
    serving = [executor for executor in executors if executor.is_serving]
    seen: dict[Status, Counter[str]] = {status: _by_queue(engine, status) for status in BY_QUEUE}
    rows = {row.name: row for row in engine.queues.all()}
    names = declared_queues(engine.alias) | rows.keys() | set(engine.queues_in_use())
    names = names.union(*seen.values(), *(executor.row.queues for executor in serving))
    queues = [_queue(engine, name, now, seen, serving, rows.get(name)) for name in sorted(names or {"default"})]
    return Figures(
        backend=engine.alias,
        now=now,
        queues=queues,
        executors=executors,
        serving=serving,
        totals={
            Status.READY: sum((queue.counts[Status.READY] for queue in queues), Count()),
            **{status: _capped(sum(counts.values())) for status, counts in seen.items()},
            **{status: count_ended(of_status(engine, status)) for status in FINAL if status is not Status.FAILED},
        },
        last_minute={
            status: count_ended(of_status(engine, status).filter(finished_at__gte=bound(-MINUTE_SECONDS)))
            for status in FINAL
        },
    )


def count_ended(rows: TaskQuerySet) -> Count:
    """Count in the order of the index: without one, the planner reads the table where it expects many."""
    return _capped(rows.order_by("-finished_at")[: CAP + 1].count())


def _capped(number: int) -> Count:
    return Count(min(number, CAP), number > CAP)


def _by_queue(engine: Engine, status: Status) -> Counter[str]:
    """Share out the first CAP + 1 of a status among their queues: no index knows both."""
    rows = of_status(engine, status)
    rows = rows.order_by("-finished_at") if status in FINAL else rows
    return Counter(rows.values_list("queue_name", flat=True)[: CAP + 1])


def _queue(
    engine: Engine,
    name: str,
    now: datetime,
    seen: Mapping[Status, Counter[str]],
    serving: Sequence[ExecutorFigures],
    row: Queue | None,
) -> QueueFigures:
    ready = of_status(engine, Status.READY).filter(queue_name=name).order_by("rank", "pk")
    waiting = list(ready.values_list("rank", "priority", "enqueued_at")[: CAP + 1])
    aging = engine.options.aging
    since = min((max(rank + timedelta(seconds=aging * p), at) for rank, p, at in waiting), default=None)
    counts = {Status.READY: _capped(len(waiting))}
    for status, by_queue in seen.items():
        counts[status] = Count(min(by_queue[name], CAP), by_queue.total() > CAP)
    return QueueFigures(
        name=name,
        counts=counts,
        latency=None if since is None else max(0.0, (now - since).total_seconds()),
        serving=sum(not executor.row.queues or name in executor.row.queues for executor in serving),
        row=row,
        is_paused=row is not None and row.is_paused_at(now),
    )


def executors_of(engine: Engine, now: datetime) -> Iterator[ExecutorFigures]:
    """Give the executors of a backend, the last to beat first."""
    held = Counter(of_status(engine, Status.RUNNING).values_list("executor_id", flat=True)[: CAP + 1])
    spare = SpareHeartbeat.objects.using(engine.database).values_list("executor_id").annotate(Max("at"))
    beside = dict(spare.filter(at__lt=bound(1.0)))  # a later one was written before the clock was set back
    for row in engine.executors.order_by("-heartbeat")[:EXECUTORS]:
        silent = (now - max(row.heartbeat, beside.get(row.pk, row.heartbeat))).total_seconds()
        yield ExecutorFigures(
            row=row,
            state=_life(row, silent, engine.options.heartbeat_timeout),
            busy=held[row.pk],
            silent_seconds=max(0.0, silent),
        )


def _life(row: Executor, silent_seconds: float, timeout: float) -> str:
    """Say whether it lives: by its beats, whatever it said last."""
    match row.state:
        case Executor.State.STOPPED:
            return "stopped"
        case _ if silent_seconds > timeout:
            return "lost"
        case Executor.State.QUIET:
            return "quiet"
        case Executor.State.RUNNING:
            return "alive"
        case _:
            return "stopping"
