"""Executors as people see them: what each does, and how many tasks it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from jobqueue.engine import CAP, Engine, is_gone, is_silent, silent_seconds, with_heartbeat
from jobqueue.models import Executor
from jobqueue.operations.queries import tasks_with_status
from jobqueue.values.states import PoolName, Status

MAX_EXECUTORS = 1000


class ExecutorState(StrEnum):
    """The state of an executor. Heartbeats decide it, not the state in its row."""

    ALIVE = "alive"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    NOT_RESPONDING = "not responding"

    @classmethod
    def of(cls, executor: Executor, now: datetime, timeout_seconds: float) -> ExecutorState:
        """Return the state of an executor, which has its heartbeat."""
        state = executor.heartbeat.state
        if state != Executor.State.STOPPED and is_silent(silent_seconds(executor, now), timeout_seconds):
            return cls.NOT_RESPONDING
        if state == Executor.State.STOPPING:
            return cls.STOPPING
        return cls.ALIVE if state == Executor.State.RUNNING else cls[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStats:
    """The figures of an executor."""

    row: Executor  # of the executor
    state: ExecutorState  # as people see it
    busy: int  # its running tasks in threads
    busy_async: int  # its running tasks in async slots
    silent_seconds: float  # since its last heartbeat
    is_gone: bool  # it has stopped, or was killed a while ago and its tasks have been rescued

    @property
    def running(self) -> int:
        return self.busy + self.busy_async


def read_executors(engine: Engine, now: datetime) -> Iterator[ExecutorStats]:
    """Yield the executors of a backend, the last heartbeat first."""
    busy = Counter(tasks_with_status(engine, Status.RUNNING).values_list("executor_id", "pool")[: CAP + 1])
    executors = with_heartbeat(engine.db.executors).defer("task_types").order_by("-heartbeat__at")
    timeout = engine.options.heartbeat_timeout
    for row in executors[:MAX_EXECUTORS]:
        in_threads, in_async = busy[row.pk, PoolName.THREADS], busy[row.pk, PoolName.ASYNC]
        seconds = silent_seconds(row, now)
        yield ExecutorStats(
            row=row,
            state=ExecutorState.of(row, now, timeout),
            busy=in_threads,
            busy_async=in_async,
            silent_seconds=seconds,
            is_gone=is_gone(row, seconds, timeout, has_tasks=in_threads + in_async > 0),
        )
