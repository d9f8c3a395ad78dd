"""Measure how many tasks with a rate start while more are waiting, and the most starts in one of its periods."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestants import Contestant

KEY = "rate:"
REQUEST = "INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at) VALUES ('default', 'rate', %s, now())"
STARTS = """
    WITH start AS (SELECT last_attempted_at AS at FROM jobqueue_task WHERE last_attempted_at IS NOT NULL)
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
    """share: starts after the first full period, of those that the rate allows. most: starts in any period."""

    share: float
    most: int


def measure(arena: Arena, contestant: Contestant, rate: Rate, seconds: float) -> Starts:
    database = arena.database(contestant.peer)
    database.clear()
    rows = {
        "rate_key": f"'{KEY}'",
        "rate_limit": str(rate.limit),
        "rate_seconds": f"{rate.per}::float8",
        "status": "'BLOCKED'",
    }
    database.fill(2 * rate.limit + int(2 * seconds * rate.limit / rate.per), rows)
    database.settle()
    with database.connected() as connection:
        connection.execute(REQUEST, [KEY])
        with database.at_work(contestant):
            time.sleep(seconds)
        found = connection.execute(STARTS, {"seconds": rate.per - MICROSECOND}).fetchone()
    assert found is not None
    count, length, most = found
    return Starts((count - rate.limit) / (length * rate.limit / rate.per), most)
