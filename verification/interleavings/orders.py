"""
Which orders to run: one of each kind of two connections, or a seeded sample where there are too many.

JOBQUEUE_ORDER=ABBA... repeats one order, JOBQUEUE_SEED=... draws another sample, and JOBQUEUE_SAMPLES=2000 a larger
one, which `make verify-orders` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, islice
from random import Random
from statistics import mean, stdev

from verification.interleavings.stepper import ALONE, LOCKED, Actor, Choose, Order

SAMPLES = 12  # of a scenario that has too many orders: some thousands in all, in the time that a suite has
MANY_SAMPLES = 2_000
MOST_KINDS = 50_000  # of orders of two connections, of which one each is run, where many samples are drawn of others
FEW_KINDS = 5_000  # the same for fewer samples, in proportion
PROBES = 20  # random orders, to learn how long they are
# Statements of files that only read.
LOOKS = {
    "suspended_with_messages",
    "next_wake_at",
    "tasks_of_executor",
    "executors_with_running_tasks",
    "read_messages",
    "count_unread",
    "descendants",
}

RunOne = Callable[[Choose], Order]


@dataclass(frozen=True)
class Plan:
    """What to run. letters: this one order. is_more: a sample only, after one that began with what can be listed."""

    letters: str | None = None
    seed: int = 1
    samples: int = MANY_SAMPLES
    is_more: bool = False

    @classmethod
    def from_environment(cls) -> Plan:
        seed, samples = os.environ.get("JOBQUEUE_SEED", 1), os.environ.get("JOBQUEUE_SAMPLES", SAMPLES)
        return cls(os.environ.get("JOBQUEUE_ORDER") or None, int(seed), int(samples))

    @property
    def most_kinds(self) -> int:
        if self.is_more:
            return 0
        return MOST_KINDS if self.samples >= MANY_SAMPLES else self.samples * FEW_KINDS // MANY_SAMPLES


@dataclass
class Explored:
    """What came of a scenario. is_whole: of each kind of order, one. ends: those that differed, all driven on."""

    seed: int
    count: int = 0
    is_whole: bool = False
    ends: int = 0
    seconds: float = 0.0
    failure: Order | None = field(default=None, repr=False)


def explore(run: RunOne, actors: int, plan: Plan) -> Explored:
    """Run orders until one fails, or enough have not."""
    explored = Explored(plan.seed)
    if plan.letters is not None:
        return until_failure([run(following(plan.letters))], explored)
    if actors == 2:
        until_failure(islice(every(run), plan.most_kinds), explored)
        explored.is_whole = explored.failure is None and explored.count < plan.most_kinds
    if explored.failure is None and not explored.is_whole:
        probes = [run(serially(range(actors))), run(serially(range(actors)[::-1]))]
        probes += [run(Random(f"{plan.seed}-probe-{number}").choice) for number in range(PROBES)]
        lengths = [max(lengths) for lengths in zip(*(order.lengths(actors) for order in probes), strict=True)]
        until_failure(chain(probes, islice(sampled(run, lengths, plan.seed), plan.samples)), explored)
    return explored


def until_failure(orders: Iterable[Order], explored: Explored) -> Explored:
    for order in orders:
        explored.count += 1
        if order.problems:
            explored.failure = order
            break
    return explored


def every(run: RunOne) -> Iterator[Order]:
    """
    Run one order of each kind: two are of a kind where one is the other but for steps that commute.

    Depth first, with sleep sets (Godefroid, "Partial-Order Methods", 1996, chapter 5).
    """
    search = Search()
    while search.has_more:
        yield run(search.choose)
        search.turn_back()


def estimate(run: RunOne, descents: int, seed: int) -> tuple[float, float]:
    """
    About how many kinds there are, by random descents through the tree that every() would walk; and its standard error.

    Each stands for as many leaves as there were ways at the choices that it came by (Knuth, "Estimating the
    efficiency of backtrack programs", 1975).
    """
    found = []
    for number in range(descents):
        descent = Descent(Random(f"{seed}-descent-{number}"))
        run(descent.choose)
        found.append(descent.leaves)
    return mean(found), stdev(found) / descents**0.5


@dataclass
class Node:
    """A choice. asleep, tried: whose step leads to what was run before, or lies below; with the step's words."""

    able: dict[int, str]
    asleep: dict[int, str]
    tried: dict[int, str] = field(default_factory=dict)

    @property
    def alternatives(self) -> list[int]:
        return [number for number in self.able if number not in self.asleep and number not in self.tried]

    def asleep_below(self, number: int) -> dict[int, str]:
        known = self.asleep | self.tried
        return {other: words for other, words in known.items() if commute(words, self.able[number])}


class Search:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.path: list[int] = []
        self.depth = 0
        self.has_more = True

    def choose(self, able: Sequence[Actor]) -> Actor:
        if self.depth == len(self.path):
            self._go_deeper({actor.number: actor.before for actor in able})
        number = self.path[self.depth]
        self.depth += 1
        return next(actor for actor in able if actor.number == number)

    def _go_deeper(self, able: dict[int, str]) -> None:
        asleep = self.nodes[-1].asleep_below(self.path[-1]) if self.nodes else {}
        node = Node(able, asleep)
        self.nodes.append(node)
        # Where all are asleep the order is one that was run before, and is only run to its end.
        self.path.append(self._pick(node) if node.alternatives else next(iter(able)))

    def _pick(self, node: Node) -> int:
        return node.alternatives[0]

    def turn_back(self) -> None:
        self.depth = 0
        while self.nodes:
            node, number = self.nodes[-1], self.path.pop()
            node.tried[number] = node.able[number]
            if node.alternatives:
                self.path.append(node.alternatives[0])
                return
            self.nodes.pop()
        self.has_more = False


class Descent(Search):
    """One way down, drawn by lot."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.leaves = 1
        self._random = random

    def _pick(self, node: Node) -> int:
        ways = node.alternatives
        self.leaves *= len(ways)
        drawn = self._random.randrange(len(ways))
        node.tried |= {number: node.able[number] for number in ways[:drawn]}  # as if these had been walked before
        return ways[drawn]


def commute(one: str, other: str) -> bool:
    """
    Whether two steps of different connections lead to the same, whichever comes first.

    What one transaction has written, others neither see nor wait for until it ends, except where they write or
    lock. Mail, tasks and executors are tables of their own. A task that a transaction has locked before, nobody
    else writes or locks in between; only a key may clash with a new task's. Messages are inserted under a share
    lock, which only FOR UPDATE collides with.
    """
    return frozenset({kind_of(one), kind_of(other)}) not in CLASHES and "end" not in (kind_of(one), kind_of(other))


CLASHES = {
    frozenset(pair)
    for pair in [
        ("send", "send"),
        ("send", "mail"),
        ("send", "deletion"),
        ("mail", "mail"),
        ("executor", "executor"),
        ("task", "task"),
        ("task", "deletion"),
        ("task", "new task"),
        ("deletion", "deletion"),
        ("deletion", "new task"),
        ("new task", "new task"),
        ("new task", "own task"),
    ]
}


@cache
def kind_of(words: str) -> str:
    """What a step does: most kinds are named by what it writes or locks."""
    name = words.removeprefix(ALONE).removeprefix(LOCKED)
    if name in LOOKS or (name.startswith("SELECT") and " FOR " not in name):
        return "look"
    if name in ("COMMIT", "ROLLBACK", "go on") or words.startswith(ALONE):
        return "end"
    if name == "send" or name.startswith("INSERT INTO inboxmessage"):
        return "send"
    if name in ("consume_messages", "delete_messages") or name.startswith(
        ("UPDATE inboxmessage", "DELETE FROM inboxmessage")
    ):
        return "mail"
    if name == "heartbeat" or name.startswith(("INSERT INTO executor", "UPDATE executor", "DELETE FROM executor")):
        return "executor"
    if name == "enqueue" or name.startswith("INSERT INTO task "):
        return "new task"
    if " FOR UPDATE" in name or name.startswith("DELETE FROM task "):
        return "deletion"
    if words.startswith(LOCKED) and (name in ("commit", "wake") or name.startswith("UPDATE task ")):
        return "own task"
    return "task"


def sampled(run: RunOne, lengths: Sequence[int], seed: int) -> Iterator[Order]:
    for number in count():
        yield run(shuffled(lengths, Random(f"{seed}-{number}")))


# --- ways to choose


def serially(numbers: Sequence[int]) -> Choose:
    return lambda able: min(able, key=lambda actor: numbers.index(actor.number))


def following(letters: str) -> Choose:
    rest = iter(letters)

    def choose(able: Sequence[Actor]) -> Actor:
        letter = next(rest, "")
        return next((actor for actor in able if actor.letter == letter), able[0])

    return choose


def shuffled(lengths: Sequence[int], random: Random) -> Choose:
    """Choose as a shuffled deck of all the steps would: each order is as likely as any other."""
    left = list(lengths)

    def choose(able: Sequence[Actor]) -> Actor:
        (actor,) = random.choices(able, [max(1, left[actor.number]) for actor in able])
        left[actor.number] -= 1
        return actor

    return choose
