"""Measure the time from the enqueue call to the job's first line, on an idle and a half busy worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import notes, produce
from benchmarks.arena import Arena, NotMeasured
from benchmarks.contestants import Contestant
from benchmarks.rounds import measured_in_turns

SETTLE_SECONDS = 0.5
LONGEST_SECONDS = 30.0
CHECK_SECONDS = 0.05
MAX_PER_SECOND = 400.0  # each peer can enqueue as many from one process while its workers run


@dataclass(frozen=True, slots=True)
class Waits:
    """All waits of a contestant, in seconds, sorted."""

    name: str
    seconds: Sequence[float]

    def within(self, share: float) -> float:
        """Return the time in ms within which this share of the jobs started."""
        return 1000 * self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def half_load(contestant: Contestant) -> float:
    """Return half the rate of the contestant, or the rate that one process can enqueue if that is lower."""
    return min(MAX_PER_SECOND, contestant.rate * contestant.processes / 2)


def measure(arena: Arena, contestant: Contestant, count: int, rate: float | None = None) -> Waits:
    """Enqueue jobs and collect their waits. rate: jobs per second; None leaves pauses between them."""
    arena.check(contestant)
    database = arena.database(contestant.peer)
    database.clear()
    file = Path(arena.folder) / "notes"
    file.unlink(missing_ok=True)
    with database.at_work(contestant, environment={notes.FILE: str(file)}):
        time.sleep(SETTLE_SECONDS + min(contestant.min_seconds, 2))
        database.produce(contestant.note, count, {} if rate is None else {produce.RATE: str(rate)})
        deadline = time.monotonic() + LONGEST_SECONDS
        while len(notes.read(file)) < count and time.monotonic() < deadline:
            time.sleep(CHECK_SECONDS)
    seconds = notes.read(file)
    if not seconds:
        raise NotMeasured(f"no job began within {LONGEST_SECONDS:g} s")
    return Waits(contestant.name, sorted(seconds))


def take_turns(
    arena: Arena,
    contestants: Sequence[Contestant],
    count: int,
    rounds: int,
    missing: dict[str, str],
    *,
    is_half_busy: bool = False,
) -> list[Waits]:
    """Measure each contestant in each round. Return the waits of all rounds. count: jobs in a round."""
    sides = {
        side.name: partial(measure, arena, side, count, half_load(side) if is_half_busy else None)
        for side in contestants
    }
    rounds_by_name = measured_in_turns(sides, rounds, missing, lambda waits: f"p50 {waits.within(0.5):.1f} ms")
    return [
        Waits(name, sorted(seconds for waits in taken for seconds in waits.seconds))
        for name, taken in rounds_by_name.items()
    ]
