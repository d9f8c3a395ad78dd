"""
Measure how many tasks with a rate start while more are waiting, and the most starts in one of its periods.

Each body notes the time of its first line. A claim is earlier: the task then waits for a thread.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import notes
from benchmarks.arena import Arena, NotMeasured
from benchmarks.contestants import OURS_BEST, Contestant, chancy

REQUEST = """
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at) VALUES ('default', 'rate', 'rate:', now())
"""


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """limit: starts in each `per` seconds."""

    limit: int
    per: float

    def __str__(self) -> str:
        return f"{self.limit:,} in {self.per:g} s"


@dataclass(frozen=True, slots=True)
class Starts:
    """
    share: starts after the first full period, of those that the rate allows. max_in_period: the largest number of
    starts in any period.
    """

    share: float
    max_in_period: int


def ours(rate: MeasuredRate) -> Contestant:
    rows = {
        "task_type": "'benchmarks.tasks.note'",
        "args": "'[0]'::jsonb",
        "rate_key": "'rate:'",
        "rate_limit": str(rate.limit),
        "rate_seconds": f"{rate.per}::float8",
        "status": "'BLOCKED'",
    }
    return replace(OURS_BEST, name=f"jobqueue, {rate}", rows=rows)


def of_chancy(rate: MeasuredRate) -> Contestant:
    """chancy has a rate for each queue."""
    return chancy(
        f"{rate}",
        rate=rate.limit,
        log="WARNING",
        rows={"func": "'benchmarks.peers.chancy_app.note_async'", "kwargs": """'{"sent": 0}'::jsonb"""},
        executor="chancy.executors.asyncex.AsyncExecutor",
        concurrency=1_000,
        eager_polling=True,
        rate_limit=rate.limit,
        rate_limit_window=int(rate.per),
    )


def measure(arena: Arena, contestant: Contestant, rate: MeasuredRate, seconds: float) -> Starts:
    database = arena.database(contestant.peer)
    database.clear()
    database.fill(2 * rate.limit + int(2 * seconds * rate.limit / rate.per), contestant.rows)
    database.settle()
    file = Path(arena.folder) / "notes"
    file.unlink(missing_ok=True)
    if contestant.peer == OURS_BEST.peer:
        with database.connected() as connection:
            connection.execute(REQUEST)
    with database.at_work(contestant, environment={notes.FILE: str(file)}):
        time.sleep(seconds)
    starts = sorted(notes.read(file))
    if len(starts) < 2:
        raise NotMeasured("no two tasks started")
    length = starts[-1] - starts[0]
    return Starts((len(starts) - rate.limit) / (length * rate.limit / rate.per), most_within(starts, rate.per))


def most_within(starts: Sequence[float], period: float) -> int:
    """Return the largest number of starts in a period. starts: sorted. One a whole period later is not in it."""
    return max(bisect_left(starts, start + period) - number for number, start in enumerate(starts))
