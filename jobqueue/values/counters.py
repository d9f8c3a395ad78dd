"""The values behind the metrics: counters of tasks and ticks, and gauges of the current state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from jobqueue.values.policies import SkipReason
from jobqueue.values.records import LimitKind, Status

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
    """How long a counted period is."""

    MINUTE = "minute"
    HOUR = "hour"


MAX_BLOCKED = 10_000  # tasks of each limit that are counted


def bucket(seconds: float) -> int:
    """Return the bucket of a duration among EDGES, as width_bucket() does in SQL."""
    return bisect_right(EDGES, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """
    The counters of one task type in one queue, of all time.

    Histograms have one number for each bucket of seconds.
    """

    queue_name: str
    task_type: str
    submitted: int  # tasks created
    completed: int  # ended SUCCESSFUL
    failed: int  # failed attempts
    retries: int  # failed attempts that another attempt follows
    dead: int  # ended FAILED
    lost: int  # rescued from a lost executor
    ticks_enqueued: int  # ticks of schedules that became a task
    ticks_overlap: int  # skipped ticks, as the next three
    ticks_paused: int
    ticks_missed: int
    ticks_key: int
    wait_seconds: float
    run_seconds: float
    lateness_seconds: float
    waits: Sequence[int]  # started attempts, by the seconds from READY to the claim
    runs: Sequence[int]  # started attempts, by the seconds of their body
    # enqueued ticks, by the seconds since they were due; without those that waited for a running task
    lateness: Sequence[int]


class Depth(Struct, frozen=True):
    """How many tasks of a queue are in a live state. is_estimate: there are more than were counted."""

    queue_name: str
    status: Status
    number: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """
    The current state of a backend.

    in_flight: tasks that executors hold. active_workers: slots of live executors that run one of them.
    oldest_ready_seconds: by queue, of the next hundred tasks in the order of claiming. oldest_snapshot_seconds: the age
    of the oldest transaction that keeps dead rows from being removed.
    """

    depths: Sequence[Depth]
    in_flight: int
    active_workers: int
    slots: int
    executors: int
    oldest_ready_seconds: dict[str, float]
    oldest_snapshot_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleGauges:
    """
    The schedules of a backend. active: those with a next tick. stopped: those that an error has stopped.

    overdue_seconds: by how much the most overdue schedule is late; 0 if none is.
    """

    active: int
    paused: int
    stopped: int
    overdue_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitGauges:
    """
    The tasks that wait for a limit, over all of its keys. blocked: up to MAX_BLOCKED.

    oldest_seconds: by rank, of the tasks that were counted.
    """

    kind: LimitKind
    name: str
    blocked: int
    oldest_seconds: float
