"""Measure an idle worker: its share of a core, that of PostgreSQL, and its memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import cpu
from benchmarks.arena import Arena
from benchmarks.contestants import Contestant
from benchmarks.drain import is_filled, prepare
from benchmarks.rounds import measured_in_turns

SETTLE_SECONDS = 3.0  # imports, first statements, plans


@dataclass(frozen=True, slots=True)
class Idle:
    """worker, server: percent of a core. megabytes: proportional set size of all processes."""

    name: str
    worker: float
    server: float
    megabytes: float


def measure(arena: Arena, contestant: Contestant, seconds: float, *, condition: str = "", others: int = 0) -> Idle:
    """condition, others: the kind and number of rows in the table. Without them, it is empty."""
    arena.check(contestant)
    database = arena.database(contestant.peer, f"{condition} {others}" if others else "")
    if not others:
        database.clear()
    elif not is_filled(database):
        database.fill(others, database.store.conditions[condition])
        prepare(database, condition)
    database.settle()
    with database.at_work(contestant) as pids:
        time.sleep(SETTLE_SECONDS)
        before = used(pids), arena.cpu_seconds()
        time.sleep(seconds)
        after = used(pids), arena.cpu_seconds()
        memory = sum(resident(process) for pid in pids for process in [pid, *cpu.children_of(pid)])
    worker, server = (100 * (now - then) / seconds for now, then in zip(after, before, strict=True))
    return Idle(contestant.name, worker, server, memory / 1024)


def take_turns(
    arena: Arena, contestants: Sequence[Contestant], seconds: float, rounds: int, missing: dict[str, str]
) -> list[Idle]:
    """Measure each contestant in each round. Return their medians."""
    sides = {side.name: partial(measure, arena, side, seconds) for side in contestants}
    samples = measured_in_turns(sides, rounds, missing, lambda sample: f"idle {sample.worker:.2f} %")
    return [
        Idle(
            name,
            median(sample.worker for sample in taken),
            median(sample.server for sample in taken),
            median(sample.megabytes for sample in taken),
        )
        for name, taken in samples.items()
    ]


def used(pids: list[int]) -> float:
    return sum(cpu.seconds_of_tree(pid) for pid in pids)


def resident(pid: int) -> int:
    """Return the proportional set size in kB: a shared page counts in part for each process."""
    for line in (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
