"""
Which orders to run: all of them while they are few, else a seeded sample.

JOBQUEUE_ORDER=ABBA... repeats one order, JOBQUEUE_SEED=... draws another sample, and
JOBQUEUE_INTERLEAVINGS=full raises the limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import prod
from random import Random
from statistics import fmean

from tests.interleavings.stepper import Choose, Order

# So many orders, or fewer, are all run; of more, so many are drawn.
LIMITS = {"full": (5_000, 2_000), "quick": (1_000, 300)}
PROBES = 40  # random orders to guess from how many there are

RunOne = Callable[[Choose], Order]


@dataclass
class Explored:
    """What came of the orders of one scenario. is_whole: all there are. ends: ends that differed, all driven on."""

    count: int = 0
    is_whole: bool = False
    seed: int = field(default_factory=lambda: int(os.environ.get("JOBQUEUE_SEED", "1")))
    ends: int = 0
    failure: Order | None = field(default=None, repr=False)


def limits() -> tuple[int, int]:
    return LIMITS[os.environ.get("JOBQUEUE_INTERLEAVINGS", "quick")]


def explore(run: RunOne, actors: int) -> Explored:
    """Run orders until one fails, or enough have not."""
    explored = Explored()
    if (letters := os.environ.get("JOBQUEUE_ORDER")) is not None:
        return until_failure([run(following(letters))], explored)
    probes = [run(serially(range(actors))), run(serially(range(actors)[::-1]))]
    probes += [run(Random(f"{explored.seed}-probe-{number}").choice) for number in range(PROBES)]
    if any(order.problems for order in probes):
        return until_failure(probes, explored)
    few, sample_size = limits()
    if guess(probes[2:]) <= few:
        until_failure(islice(every(run), 2 * few), explored)
        explored.is_whole = explored.failure is None and explored.count < 2 * few
    else:
        lengths = [max(lengths) for lengths in zip(*(order.lengths(actors) for order in probes), strict=True)]
        until_failure(islice(sampled(run, lengths, explored.seed), sample_size), explored)
    return explored


def guess(probes: Sequence[Order]) -> float:
    """Guess how many orders there are: Knuth, "Estimating the efficiency of backtrack programs", 1975."""
    return fmean(prod(order.widths) for order in probes)


def until_failure(orders: Iterator[Order] | Sequence[Order], explored: Explored) -> Explored:
    for order in orders:
        explored.count += 1
        if order.problems:
            explored.failure = order
            break
    return explored


def every(run: RunOne) -> Iterator[Order]:
    """Depth first: repeat the last order as far as its last choice that has an alternative left, and take that."""
    prefix: list[int] | None = []
    while prefix is not None:
        order = run(by_index(prefix))
        yield order
        prefix = following_prefix(order)


def following_prefix(order: Order) -> list[int] | None:
    for place in reversed(range(len(order.choices))):
        if order.choices[place] + 1 < order.widths[place]:
            return [*order.choices[:place], order.choices[place] + 1]
    return None


def sampled(run: RunOne, lengths: Sequence[int], seed: int) -> Iterator[Order]:
    for number in count():
        yield run(shuffled(lengths, Random(f"{seed}-{number}")))


# --- ways to choose


def serially(numbers: Sequence[int]) -> Choose:
    return lambda able: min(able, key=numbers.index)


def by_index(prefix: Sequence[int]) -> Choose:
    rest = iter(prefix)
    return lambda able: able[next(rest, 0)]


def following(letters: str) -> Choose:
    rest = iter(letters)

    def choose(able: Sequence[int]) -> int:
        number = "ABC".find(next(rest, "?"))
        return number if number in able else able[0]

    return choose


def shuffled(lengths: Sequence[int], random: Random) -> Choose:
    """Choose as a shuffled deck of all the steps would: each order is as likely as any other."""
    left = list(lengths)

    def choose(able: Sequence[int]) -> int:
        (number,) = random.choices(able, [max(1, left[number]) for number in able])
        left[number] -= 1
        return number

    return choose
