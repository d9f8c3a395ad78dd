"""Rounds in which all contestants take turns, so that a busy machine slows all alike; medians and ratios."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from subprocess import SubprocessError
from typing import TypeVar

from psycopg import Error as DatabaseError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round of one contestant. count: jobs or polls. CPU seconds are those between start and end."""

    count: int
    seconds: float
    worker_seconds: float
    server_seconds: float
    broker_seconds: float = 0.0
    last_tenth: float | None = None  # rate of the last tenth of the jobs against the first

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True, slots=True)
class Samples:
    """All rounds of one contestant."""

    name: str
    rounds: Sequence[Sample]

    @property
    def rates(self) -> list[float]:
        return [sample.rate for sample in self.rounds]

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def seconds(self) -> float:
        return median(sample.seconds for sample in self.rounds)

    @property
    def count(self) -> float:
        return median(sample.count for sample in self.rounds)

    @property
    def worker_ms(self) -> float:
        return 1000 * median(sample.worker_seconds / sample.count for sample in self.rounds)

    @property
    def last_tenth(self) -> float | None:
        tenths = [sample.last_tenth for sample in self.rounds if sample.last_tenth is not None]
        return median(tenths) if tenths else None

    @property
    def broker_ms(self) -> float:
        return 1000 * median(sample.broker_seconds / sample.count for sample in self.rounds)

    @property
    def server_ms(self) -> float:
        return 1000 * median(sample.server_seconds / sample.count for sample in self.rounds)


def take_turns(
    sides: Mapping[str, Callable[[], Sample]], rounds: int, missing: dict[str, str] | None = None
) -> list[Samples]:
    """Measure each contestant once in each round, as measured_in_turns() does."""
    samples = measured_in_turns(sides, rounds, missing, lambda sample: f"{sample.rate:>9,.0f}/s")
    return [Samples(name, taken) for name, taken in samples.items()]


def measured_in_turns(
    sides: Mapping[str, Callable[[], T]], rounds: int, missing: dict[str, str] | None, show: Callable[[T], str]
) -> dict[str, list[T]]:
    """
    Measure each contestant once in each round. Each round starts with another one.

    missing: receives the contestants that cannot be measured, with the reason. Without it, raise the error.
    show: makes the text of a result for the progress on stderr.
    """
    results: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(results)
        for name in names[number % len(names) :] + names[: number % len(names)] if names else []:
            try:
                result = sides[name]()
            except (RuntimeError, OSError, SubprocessError, DatabaseError) as error:
                if missing is None:
                    raise
                missing[name] = str(error).splitlines()[0]
                del results[name]
                print(f"round {number + 1} {name:<40} not measured: {error}", file=sys.stderr, flush=True)
                continue
            results[name].append(result)
            print(f"round {number + 1} {name:<40} {show(result)}", file=sys.stderr, flush=True)
    return results


def table(sides: Sequence[Samples], *, unit: str, base: Samples) -> str:
    """Return a Markdown table. The last column is the median of the ratios to `base` in each round."""
    lines = [
        f"| | {unit}s/s | lowest to highest | {unit}s | seconds | CPU ms per {unit}: worker + PostgreSQL | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {side.name} | {side.rate:,.0f} | {min(side.rates):,.0f} to {max(side.rates):,.0f} | {side.count:,.0f} "
        f"| {side.seconds:.2f} | {side.worker_ms:.2f} + {side.server_ms:.2f} | {ratio(side, base):.2f} |"
        for side in sides
    ]
    return "\n".join(lines)


def ratio(side: Samples, base: Samples) -> float:
    return median(mine / theirs for mine, theirs in zip(side.rates, base.rates, strict=True))
