"""Measure how many bytes of PostgreSQL's log a job costs, from its enqueue call to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from statistics import median

from benchmarks.arena import Arena, NotMeasured, PeerDatabase, scalar
from benchmarks.contestants import Contestant
from benchmarks.produce import WARM_UP
from benchmarks.rounds import measured_in_turns

LONGEST_SECONDS = 120.0
CHECK_SECONDS = 0.1


def measure(arena: Arena, contestant: Contestant, count: int) -> float:
    """Enqueue jobs one by one, let workers do them, and return the bytes for each job."""
    arena.check(contestant)
    database = arena.database(contestant.peer)
    database.clear()
    database.settle()
    began_at = written(database)
    database.produce("one", count)
    with database.at_work(contestant):
        deadline = time.monotonic() + LONGEST_SECONDS
        while database.takeable():
            if time.monotonic() > deadline:
                raise NotMeasured(f"{contestant.name}: not all jobs were done in {LONGEST_SECONDS:g} s")
            time.sleep(CHECK_SECONDS)
    return (written(database) - began_at) / (WARM_UP + count)


def take_turns(
    arena: Arena, contestants: Sequence[Contestant], count: int, rounds: int, missing: dict[str, str]
) -> dict[str, float]:
    """Measure each contestant in each round. Return their medians by name."""
    sides = {side.name: partial(measure, arena, side, count) for side in contestants}
    sizes = measured_in_turns(sides, rounds, missing, lambda size: f"{size:,.0f} bytes of WAL")
    return {name: median(taken) for name, taken in sizes.items()}


def written(database: PeerDatabase) -> int:
    """Return the bytes that the server has ever written to its log."""
    with database.connected() as connection:
        return int(scalar(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
