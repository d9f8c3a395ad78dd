"""
Which orders to run: all of them for two connections while they are few, else a seeded sample.

JOBQUEUE_ORDER=ABBA... repeats one order, JOBQUEUE_SEED=... another sample, and
JOBQUEUE_INTERLEAVINGS=<number> sets the size of samples (`full`: 2,000).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import factorial, prod
from random import Random

from tests.interleavings.stepper import Choose, Order

FEW = 5_000  # orders of two connections, which are then all run
FULL_SAMPLE = 2_000
SAMPLE = 2_000

RunOne = Callable[[Choose], Order]


@dataclass
class Explored:
    """What came of the orders of one scenario. is_whole: all there are."""

    count: int = 0
    is_whole: bool = False
    seed: int | None = None
    failure: Order | None = field(default=None, repr=False)
    lengths: list[int] = field(default_factory=list)  # steps of each actor
    shapes: int = 0  # ends that differed, each of which was driven on


def sample_size() -> int:
    asked = os.environ.get("JOBQUEUE_INTERLEAVINGS", str(SAMPLE))
    return FULL_SAMPLE if asked == "full" else int(asked)


def explore(run: RunOne, actors: int) -> Explored:
    """Run orders until one fails, or enough have not."""
    if (letters := os.environ.get("JOBQUEUE_ORDER")) is not None:
        return until_failure([run(following(letters))], Explored())
    first, last = run(serially(range(actors))), run(serially(range(actors)[::-1]))
    lengths = [max(pair) for pair in zip(first.lengths(actors), last.lengths(actors), strict=True)]
    explored = Explored(lengths=lengths)
    for order in (first, last):
        if order.problems:
            return until_failure([order], explored)
    if actors == 2 and bound(lengths) <= FEW:
        explored.is_whole = True
        return until_failure(every(run), explored)
    explored.seed = int(os.environ.get("JOBQUEUE_SEED", "1"))
    return until_failure(sampled(run, lengths, explored.seed), explored)


def until_failure(orders: Iterator[Order] | Sequence[Order], explored: Explored) -> Explored:
    for order in orders:
        explored.count += 1
        if order.problems:
            explored.failure = order
            break
    return explored


def bound(lengths: Sequence[int]) -> int:
    """Count the orders of sequences that never wait for each other."""
    return factorial(sum(lengths)) // prod(factorial(length) for length in lengths)


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
    for number in range(sample_size()):
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
