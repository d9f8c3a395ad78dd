"""Measure how many tasks with a rate start while more are waiting, and the most starts in one of its periods."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from benchmarks.arena import Arena, NotMeasured
from benchmarks.contestants import CHANCY_BEST, OURS_BEST, Contestant, chancy

REQUEST = """
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at) VALUES ('default', 'rate', 'rate:', now())
"""
STARTS = """
    WITH start AS ({started})
    SELECT
        (SELECT count(*) FROM start),
        (SELECT extract(epoch FROM max(at) - min(at))::float8 FROM start),
        (
            SELECT max(number) FROM (
                SELECT count(*) OVER (
                    ORDER BY at RANGE BETWEEN CURRENT ROW AND make_interval(secs => %(seconds)s) FOLLOWING
                ) AS number FROM start
            ) AS windows
        )
"""
MICROSECOND = 1e-6  # a start that leaves the window allows another one at the same moment


@dataclass(frozen=True, slots=True)
class Rate:
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


def ours(rate: Rate) -> Contestant:
    rows = {
        "rate_key": "'rate:'",
        "rate_limit": str(rate.limit),
        "rate_seconds": f"{rate.per}::float8",
        "status": "'BLOCKED'",
    }
    return replace(OURS_BEST, name=f"jobqueue, {rate}", rows=rows)


def of_chancy(rate: Rate) -> Contestant:
    """chancy has a rate for each queue."""
    return chancy(
        f"{rate}",
        rate=rate.limit,
        log="WARNING",
        rows=CHANCY_BEST.rows,
        executor="chancy.executors.asyncex.AsyncExecutor",
        concurrency=1_000,
        eager_polling=True,
        rate_limit=rate.limit,
        rate_limit_window=int(rate.per),
    )


def measure(arena: Arena, contestant: Contestant, rate: Rate, seconds: float) -> Starts:
    database = arena.database(contestant.peer)
    database.clear()
    database.fill(2 * rate.limit + int(2 * seconds * rate.limit / rate.per), contestant.rows)
    database.settle()
    with database.connected() as connection:
        if contestant.peer == OURS_BEST.peer:
            connection.execute(REQUEST)
        with database.at_work(contestant):
            time.sleep(seconds)
        query = STARTS.format(started=database.store.started)
        found = connection.execute(query, {"seconds": rate.per - MICROSECOND}).fetchone()
    if found is None or not found[1]:
        raise NotMeasured("no two tasks started")
    count, length, max_in_period = found
    return Starts((count - rate.limit) / (length * rate.limit / rate.per), max_in_period)
