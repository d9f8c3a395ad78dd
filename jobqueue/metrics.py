"""What is counted of tasks, and what stands at a moment: the numbers of metrics/, as plain values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from jobqueue.records import Status

# Seconds. Rows of the tally hold one count per place in this list, and one for what is longer: another list would
# give the counts of before another meaning.
EDGES = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0
)  # fmt: skip
COUNTERS = ("submitted", "completed", "failed", "retries", "dead", "lost")


def bucket(seconds: float) -> int:
    """Give the place of a duration among EDGES, as width_bucket() does in SQL."""
    return bisect_right(EDGES, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """
    What happened to tasks of one type in one queue, ever since.

    submitted: created by whomever. completed: ended SUCCESSFUL. failed: attempts that did. retries: of those, the ones
    to be tried again. dead: ended FAILED. lost: taken from an executor that was lost. waits, runs: of started attempts,
    how many by the place of their seconds among EDGES; from READY to the claim, and of the body.
    """

    queue_name: str
    task_type: str
    submitted: int
    completed: int
    failed: int
    retries: int
    dead: int
    lost: int
    wait_seconds: float
    run_seconds: float
    waits: Sequence[int]
    runs: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many tasks of a queue are in a live state. is_estimate: there are more than are counted."""

    queue_name: str
    status: Status
    number: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """
    How a backend stands now.

    in_flight: tasks that executors hold. active_workers: of the `slots` of living executors, those that one of
    them is for. oldest_ready_seconds: by queue; of the next hundred in the order of claiming. oldest_snapshot_seconds:
    how long a transaction has been open that keeps what claims have passed from being cleaned away.
    """

    depths: Sequence[Depth]
    in_flight: int
    active_workers: int
    slots: int
    executors: int
    oldest_ready_seconds: dict[str, float]
    oldest_snapshot_seconds: float = 0.0
