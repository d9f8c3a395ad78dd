"""Figures of queues and executors. Counts are exact up to CAP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jobqueue.api import declared_queues
from jobqueue.engine import CAP, Count, Engine, clock_to_compare, count
from jobqueue.models import Queue
from jobqueue.operations.executors import ExecutorState, ExecutorStats, read_executors
from jobqueue.operations.formatting import describe_pause, duration
from jobqueue.operations.queries import count_by, tasks_with_status
from jobqueue.values.states import FINAL, LIVE, Status

MAX_QUEUES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The figures of a queue."""

    name: str  # of the queue
    counts: Mapping[Status, Count]  # live tasks and recent failures, by status
    latency: float | None  # seconds; None if it is not in use
    executors: int  # those that serve it
    row: Queue  # unsaved if it has none
    is_paused: bool  # people have paused it

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
class BackendStats:
    """The figures of a backend."""

    backend: str  # its alias in TASKS
    now: datetime  # of the database
    queues: Sequence[QueueStats]  # by name
    executors: Sequence[ExecutorStats]  # that are alive, or were a short time ago
    totals: Mapping[Status, Count]  # of live tasks, by status

    def in_state(self, state: ExecutorState) -> list[ExecutorStats]:
        return [executor for executor in self.executors if executor.state == state]

    @property
    def alive(self) -> list[ExecutorStats]:
        return self.in_state(ExecutorState.ALIVE)


def read_stats(engine: Engine) -> BackendStats:
    """Read the figures of one backend."""
    now = engine.db.now()
    executors = list(read_executors(engine, now))
    alive = [executor.row for executor in executors if executor.state == ExecutorState.ALIVE]
    rows = {row.name: row for row in engine.db.queues.all()}
    latencies = {queue.queue_name: queue.latency_seconds for queue in engine.queues.queue_latency()}
    live = {(depth.queue_name, depth.status): Count.capped(depth.number) for depth in engine.queues.depths()}
    # The newest of them only: no index has both status and queue.
    failed = count_by(tasks_with_status(engine, Status.FAILED).order_by("-finished_at"), "queue_name")
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
    at = {} if within_seconds is None else {"finished_at__gte": clock_to_compare(after=-within_seconds)}
    # In the order of the index. Without an order the planner may read the table.
    return {status: count(tasks_with_status(engine, status).filter(**at).order_by("-finished_at")) for status in FINAL}
