"""Measure the memory of a worker during many jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import cpu
from benchmarks.arena import Arena, NotMeasured
from benchmarks.contestants import Contestant
from benchmarks.idle import resident

LOOKS = 5
CHECK_SECONDS = 2.0
LONGEST_SECONDS = 1_200.0


def measure(arena: Arena, contestant: Contestant, jobs: int) -> Iterator[tuple[int, float]]:
    """Yield the number of jobs done and the megabytes of all processes of the worker, from none to all jobs."""
    database = arena.database(contestant.peer)
    database.clear()
    database.settle()
    with database.at_work(contestant) as pids:
        time.sleep(CHECK_SECONDS)
        yield 0, megabytes(pids)
        database.fill(jobs, contestant.rows, quietly=False)
        deadline = time.monotonic() + LONGEST_SECONDS
        done, wanted = 0, [round(jobs * share / LOOKS) for share in range(1, LOOKS + 1)]
        while wanted:
            if time.monotonic() > deadline:
                raise NotMeasured(f"{contestant.name}: {done:,} jobs in {LONGEST_SECONDS:g} s")
            time.sleep(CHECK_SECONDS)
            done = jobs - database.takeable()
            if done >= wanted[0]:
                yield done, megabytes(pids)
                wanted = [mark for mark in wanted if mark > done]


def megabytes(pids: list[int]) -> float:
    return sum(resident(process) for pid in pids for process in [pid, *cpu.children_of(pid)]) / 1024
