"""Figures of queues and executors. Counts are exact up to CAP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from jobqueue.api import declared_queues
from jobqueue.engine import Engine, now_plus, with_last_heartbeat
from jobqueue.models import Executor, Queue
from jobqueue.operations.formatting import describe_pause, duration
from jobqueue.operations.list.queries import CAP, Count, capped, count, count_by, of_status
from jobqueue.values.records import FINAL, LIVE, PoolName, Status

MAX_EXECUTORS = 1000
MAX_QUEUES = 1000
GONE_SECONDS = 3600.0  # without a heartbeat


class ExecutorState(StrEnum):
    """What an executor does. Heartbeats decide, not the state in its row."""

    ALIVE = "alive"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    NOT_RESPONDING = "not responding"

    @classmethod
    def of(cls, executor: Executor, silent_seconds: float, timeout_seconds: float) -> ExecutorState:
        if executor.state != Executor.State.STOPPED and silent_seconds > timeout_seconds:
            return cls.NOT_RESPONDING
        if executor.state == Executor.State.DRAINING:
            return cls.STOPPING
        return cls.ALIVE if executor.state == Executor.State.RUNNING else cls[executor.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """
    One queue. latency: seconds; None if it is not in use. executors: those that serve it. row: unsaved if it has none.
    """

    name: str
    counts: Mapping[Status, Count]
    latency: float | None
    executors: int
    row: Queue
    is_paused: bool

    @property
    def latency_text(self) -> str:
        return duration(self.latency) if self.latency else "–"

    @property
    def pause(self) -> str:
        """The description of the pause; empty if the queue is active."""
        return describe_pause(self.row) if self.is_paused else ""

    @property
    def lacks_executors(self) -> bool:
        return self.latency is not None and not self.executors


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStats:
    """busy, busy_async: its running tasks in threads and in async slots. silent_seconds: since its last heartbeat."""

    row: Executor
    state: ExecutorState
    busy: int
    busy_async: int
    silent_seconds: float

    @property
    def running(self) -> int:
        return self.busy + self.busy_async

    @property
    def is_gone(self) -> bool:
        """Whether it has stopped, or was killed a while ago and its tasks have been rescued."""
        is_lost = self.state == ExecutorState.NOT_RESPONDING and self.silent_seconds > GONE_SECONDS
        return self.state == ExecutorState.STOPPED or (is_lost and not self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStats:
    """totals: of live tasks, by status."""

    backend: str
    now: datetime
    queues: Sequence[QueueStats]
    executors: Sequence[ExecutorStats]
    totals: Mapping[Status, Count]

    def in_state(self, state: ExecutorState) -> list[ExecutorStats]:
        return [executor for executor in self.executors if executor.state == state]

    @property
    def alive(self) -> list[ExecutorStats]:
        return self.in_state(ExecutorState.ALIVE)


def read_stats(engine: Engine) -> BackendStats:
    """Read the figures of one backend."""
    now = engine.now()
    executors = list(read_executors(engine, now))
    alive = [executor.row for executor in executors if executor.state == ExecutorState.ALIVE]
    rows = {row.name: row for row in engine.queues.all()}
    latencies = {queue.queue_name: queue.latency_seconds for queue in engine.queue_latency()}
    live = {(depth.queue_name, depth.status): capped(depth.number) for depth in engine.depths()}
    failed = _failed_by_queue(engine)
    names = declared_queues(engine.alias) | rows.keys() | {name for name, _status in live}
    names = names.union(failed, *(executor.queues for executor in alive))
    queues = []
    for name in sorted(names or {"default"})[:MAX_QUEUES]:
        counts = {status: live.get((name, status), Count()) for status in LIVE}
        counts[Status.FAILED] = Count(min(failed[name], CAP), is_more=failed.total() > CAP)
        queues.append(
            QueueStats(
                name=name,
                counts=counts,
                latency=latencies.get(name),
                executors=sum(not executor.queues or name in executor.queues for executor in alive),
                row=rows.get(name) or Queue(backend=engine.alias, name=name),
                is_paused=name in rows and rows[name].is_paused_at(now),
            )
        )
    return BackendStats(
        backend=engine.alias,
        now=now,
        queues=queues,
        executors=executors,
        totals={status: sum((queue.counts[status] for queue in queues), Count()) for status in LIVE},
    )


def count_ended(engine: Engine, within_seconds: float | None = None) -> dict[Status, Count]:
    """Count the tasks that have ended, or that ended within so many seconds, by status."""
    at = {} if within_seconds is None else {"finished_at__gte": now_plus(-within_seconds)}
    # In the order of the index. Without an order the planner may read the table.
    return {status: count(of_status(engine, status).filter(**at).order_by("-finished_at")) for status in FINAL}


def _failed_by_queue(engine: Engine) -> Counter[str]:
    """Count the newest CAP + 1 FAILED tasks by queue. No index has both."""
    return count_by(of_status(engine, Status.FAILED).order_by("-finished_at"), "queue_name")


def read_executors(engine: Engine, now: datetime) -> Iterator[ExecutorStats]:
    """Yield the executors of a backend, the last heartbeat first."""
    busy = Counter(of_status(engine, Status.RUNNING).values_list("executor_id", "pool")[: CAP + 1])
    executors = with_last_heartbeat(engine.executors).defer("task_types").order_by("-last_heartbeat")
    for row in executors[:MAX_EXECUTORS]:
        silent = max(0.0, (now - row.last_heartbeat).total_seconds())
        state = ExecutorState.of(row, silent, engine.options.heartbeat_timeout)
        yield ExecutorStats(
            row=row,
            state=state,
            busy=busy[row.pk, PoolName.THREADS],
            busy_async=busy[row.pk, PoolName.ASYNC],
            silent_seconds=silent,
        )
