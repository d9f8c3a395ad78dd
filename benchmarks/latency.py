"""Measure the time from the enqueue call to the job's first line, on an idle and a half busy worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import notes, produce
from benchmarks.arena import Arena, NotMeasured
from benchmarks.contestants import Contestant

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
    waits = notes.read(file)
    if not waits:
        raise NotMeasured(f"no job began within {LONGEST_SECONDS:g} s")
    return Waits(contestant.name, sorted(waits))


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
    waits_by_name: dict[str, list[float]] = {}
    for _ in range(rounds):
        for contestant in contestants:
            if contestant.name in missing:
                continue
            try:
                waits = measure(arena, contestant, count, half_load(contestant) if is_half_busy else None)
            except RuntimeError as error:
                missing[contestant.name] = str(error).splitlines()[0]
                continue
            waits_by_name.setdefault(contestant.name, []).extend(waits.seconds)
            print(f"{contestant.name:<40} p50 {waits.within(0.5):.1f} ms", file=sys.stderr, flush=True)
    return [Waits(name, sorted(waits)) for name, waits in waits_by_name.items()]
