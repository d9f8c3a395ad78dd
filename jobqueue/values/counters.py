"""The values behind the metrics: counters of tasks and ticks, and gauges of the current state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from jobqueue.values.policies import SkipReason
from jobqueue.values.states import LimitKind, Status

# Seconds. Rows of jobqueue_counter hold one count per bucket, and one for longer times. Another list would change the
# meaning of stored counts.
EDGES = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0
)  # fmt: skip
COUNTERS = ("submitted", "completed", "failed", "retries", "dead", "lost")
# A tick of a schedule became a task, or it was skipped for a reason.
TICK_OUTCOMES = ("enqueued", *(str(reason) for reason in SkipReason))
TICK_COUNTERS = tuple(f"ticks_{outcome}" for outcome in TICK_OUTCOMES)


class Scope(StrEnum):
    """The subject of the counters of a period."""

    BACKEND = "backend"
    QUEUE = "queue"
    TASK = "task"


class Length(StrEnum):
    """The length of a counted period."""

    MINUTE = "minute"
    HOUR = "hour"


def bucket(seconds: float) -> int:
    """Return the bucket of a duration among EDGES, as width_bucket() does in SQL."""
    return bisect_right(EDGES, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterTotals:
    """
    The counters of one task type in one queue, of all time.

    Histograms have one number for each bucket of seconds.

    It has more than 15 attributes because each counter is a field.
    """

    queue_name: str  # of the tasks
    task_type: str  # of the tasks
    submitted: int  # tasks created
    completed: int  # ended SUCCESSFUL
    failed: int  # failed attempts
    retries: int  # failed attempts that another attempt follows
    dead: int  # ended FAILED
    lost: int  # rescued from a lost executor
    ticks_enqueued: int  # ticks of schedules that became a task
    ticks_overlap: int  # skipped: the task of the tick before had not ended
    ticks_paused: int  # skipped: the schedule was paused
    ticks_missed: int  # skipped: no executor ran in time
    ticks_key: int  # skipped: a live task had the unique key
    wait_seconds: float  # the sum of `waits`
    run_seconds: float  # the sum of `runs`
    lateness_seconds: float  # the sum of `lateness`
    waits: Sequence[int]  # started attempts, by the seconds from READY to the claim
    runs: Sequence[int]  # started attempts, by the seconds of their body
    # enqueued ticks, by the seconds since they were due; without those that waited for a running task
    lateness: Sequence[int]


class Depth(Struct, frozen=True):
    """The number of a queue's tasks in one live state."""

    queue_name: str  # of the tasks
    status: Status  # a live one
    number: int  # tasks
    is_estimate: bool = False  # there are more than were counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The current state of a backend."""

    depths: Sequence[Depth]  # for each queue and live status with tasks
    in_flight: int  # tasks that executors have claimed
    active_workers: int  # slots of live executors that run one of them; an executor counts at most its own slots
    slots: int  # threads of live executors
    executors: int  # live ones
    # by queue, the longest wait among the next hundred tasks in the order of claiming
    oldest_ready_seconds: dict[str, float]
    oldest_snapshot_seconds: float = 0.0  # age of the oldest transaction that keeps dead rows from being removed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleGauges:
    """The schedules of a backend."""

    active: int  # those with a next tick
    paused: int  # by people
    stopped: int  # by an error
    overdue_seconds: float  # by how much the most overdue schedule is late; 0 if none is


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitGauges:
    """The tasks that wait for a limit, over all of its keys."""

    kind: LimitKind  # concurrency or rate
    name: str  # of the limit
    blocked: int  # tasks, counted up to CAP
    oldest_seconds: float  # how long the first of the counted tasks, in the order of their rank, has waited
