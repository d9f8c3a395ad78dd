"""
Select the orders to run: one of each kind for two connections, or a seeded sample if there are too many.

JOBQUEUE_ORDER=ABBA... repeats one order. JOBQUEUE_SEED=... draws another sample. JOBQUEUE_SAMPLES=2000 draws a larger
one, as `make verify-orders` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, islice
from random import Random
from statistics import mean, stdev

from verification.interleavings.stepper import AUTOCOMMIT, CLOCK, LOCKED, TIME_PASSES, Choose, Client, Order

SAMPLES = 2  # of each scenario with too many orders, in an ordinary test run
MANY_SAMPLES = 2_000
MAX_KINDS = 50_000  # of two connections: with more, orders are sampled
FEW_KINDS = 5_000  # the same limit when fewer samples are drawn, in proportion
PROBES = 20  # random orders that measure how many steps each client takes
# SQL files that only read.
READ_ONLY = {
    "suspended_with_messages",
    "tasks_of_executor",
    "executors_with_running_tasks",
    "read_messages",
    "count_unread",
    "descendants",
    "request_admission",  # it inserts rows that no other session sees before the commit
}

# By their first match.
TABLES_OF_SCHEDULES = {
    "deployment": [" scheduledeployment"],
    "tick": ["INSERT INTO scheduletick", "UPDATE scheduletick", "DELETE FROM scheduletick", " OF scheduletick"],
    "deletion of a schedule": ["DELETE FROM schedule "],
    "schedule": ["INSERT INTO schedule ", "UPDATE schedule ", "UPDATE OF schedule"],
}

# By the beginning of the words.
TABLES_OF_LIMITS = {
    "read": ("INSERT INTO admissionrequest", "INSERT INTO ratestart"),
    "keys of limits": ("take_admission_requests", "DELETE FROM admissionrequest"),
    "number": ("INSERT INTO limit", "UPDATE limit", "DELETE FROM limit"),
    "reservation": ("INSERT INTO keyr", "UPDATE keyr", "DELETE FROM keyr", "reserve_key", "SELECT keyr"),  # FOR UPDATE
}

RunOne = Callable[[Choose], Order]


@dataclass(frozen=True)
class OrderPlan:
    """What to run. labels: only this order. is_sample_only: skip the list of kinds, an earlier plan has run it."""

    labels: str | None = None
    seed: int = 1
    samples: int = MANY_SAMPLES
    is_sample_only: bool = False

    @classmethod
    def from_environment(cls) -> OrderPlan:
        seed, samples = os.environ.get("JOBQUEUE_SEED", 1), os.environ.get("JOBQUEUE_SAMPLES", SAMPLES)
        return cls(os.environ.get("JOBQUEUE_ORDER") or None, int(seed), int(samples))

    @property
    def max_kinds(self) -> int:
        if self.is_sample_only:
            return 0
        return MAX_KINDS if self.samples >= MANY_SAMPLES else self.samples * FEW_KINDS // MANY_SAMPLES


@dataclass
class Explored:
    """Result of a scenario. is_whole: one order of each kind ran. ends: number of different final states."""

    seed: int
    count: int = 0
    is_whole: bool = False
    ends: int = 0
    seconds: float = 0.0
    failure: Order | None = field(default=None, repr=False)


def explore(run: RunOne, clients: int, plan: OrderPlan) -> Explored:
    """Run orders until one fails or the plan is complete."""
    explored = Explored(plan.seed)
    if plan.labels is not None:
        return until_failure([run(following(plan.labels))], explored)
    if clients == 2:
        until_failure(islice(every(run), plan.max_kinds), explored)
        explored.is_whole = explored.failure is None and explored.count < plan.max_kinds
    if explored.failure is None and not explored.is_whole:
        probes = [run(serially(range(clients))), run(serially(range(clients)[::-1]))]
        probes += [run(Random(f"{plan.seed}-probe-{number}").choice) for number in range(min(PROBES, plan.samples))]
        lengths = [max(lengths) for lengths in zip(*(order.lengths(clients) for order in probes), strict=True)]
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
    Run one order of each kind. Two orders are of one kind if they differ only in the sequence of steps that commute.

    Depth first, with sleep sets (Godefroid, "Partial-Order Methods", 1996, chapter 5).
    """
    search = OrderSearch()
    while search.has_more:
        yield run(search.choose)
        search.turn_back()


def estimate(run: RunOne, descents: int, seed: int) -> tuple[float, float]:
    """
    Estimate the number of kinds by random descents through the tree of every(). Return it with its standard error.

    Each descent stands for the product of the alternatives at its choices (Knuth, "Estimating the efficiency of
    backtrack programs", 1975).
    """
    sizes = []
    for number in range(descents):
        descent = Descent(Random(f"{seed}-descent-{number}"))
        run(descent.choose)
        sizes.append(descent.leaves)
    return mean(sizes), stdev(sizes) / descents**0.5


@dataclass
class Choice:
    """
    One choice. asleep: clients with a step that leads to an order that ran before. tried: clients explored below it.
    """

    runnable: dict[int, str]
    asleep: dict[int, str]
    tried: dict[int, str] = field(default_factory=dict)

    @property
    def alternatives(self) -> list[int]:
        return [number for number in self.runnable if number not in self.asleep and number not in self.tried]

    def asleep_below(self, number: int) -> dict[int, str]:
        explored = self.asleep | self.tried
        return {other: words for other, words in explored.items() if commute(words, self.runnable[number])}


class OrderSearch:
    def __init__(self) -> None:
        self.nodes: list[Choice] = []
        self.path: list[int] = []
        self.depth = 0
        self.has_more = True

    def choose(self, runnable: Sequence[Client]) -> Client:
        if self.depth == len(self.path):
            self._go_deeper({client.number: client.before for client in runnable})
        number = self.path[self.depth]
        self.depth += 1
        return next(client for client in runnable if client.number == number)

    def _go_deeper(self, runnable: dict[int, str]) -> None:
        asleep = self.nodes[-1].asleep_below(self.path[-1]) if self.nodes else {}
        node = Choice(runnable, asleep)
        self.nodes.append(node)
        # If all clients are asleep, this order ran before. Only finish it.
        self.path.append(self._pick(node) if node.alternatives else next(iter(runnable)))

    def _pick(self, node: Choice) -> int:
        return node.alternatives[0]

    def turn_back(self) -> None:
        self.depth = 0
        while self.nodes:
            node, number = self.nodes[-1], self.path.pop()
            node.tried[number] = node.runnable[number]
            if node.alternatives:
                self.path.append(node.alternatives[0])
                return
            self.nodes.pop()
        self.has_more = False


class Descent(OrderSearch):
    """One random path through the tree."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.leaves = 1
        self._random = random

    def _pick(self, node: Choice) -> int:
        alternatives = node.alternatives
        self.leaves *= len(alternatives)
        drawn = self._random.randrange(len(alternatives))
        node.tried |= {
            number: node.runnable[number] for number in alternatives[:drawn]
        }  # treat the earlier alternatives as explored
        return alternatives[drawn]


def commute(first: str, other: str) -> bool:
    """
    Return whether two steps of different connections lead to the same state in both sequences.

    Other transactions do not see the writes of an open transaction, and wait for it only to write or lock the same
    rows. Messages, tasks, executors and the tables of schedules and limits are separate. After a transaction has locked
    a task, no other transaction writes or locks it. Only a new task can conflict with it, through its key. Inserting a
    message or a tick takes a share lock of its task or schedule, which conflicts with FOR UPDATE only.
    """
    return frozenset({kind_of(first), kind_of(other)}) not in CLASHES and "end" not in (kind_of(first), kind_of(other))


CLASHES = {
    frozenset(pair)
    for pair in [
        ("send", "send"),
        ("send", "messages"),
        ("send", "deletion"),
        ("messages", "messages"),
        ("executor", "executor"),
        ("task", "task"),
        ("task", "deletion"),
        ("task", "new task"),
        ("deletion", "deletion"),
        ("deletion", "new task"),
        ("new task", "new task"),
        ("new task", "own task"),
        ("schedule", "schedule"),
        ("schedule", "deletion of a schedule"),
        ("deletion of a schedule", "deletion of a schedule"),
        ("tick", "deletion of a schedule"),
        ("tick", "tick"),
        ("deployment", "deployment"),
        ("keys of limits", "keys of limits"),
        ("number", "number"),
        ("reservation", "reservation"),
        (CLOCK, TIME_PASSES),
        (TIME_PASSES, TIME_PASSES),
    ]
}


EXECUTORS = tuple(
    f"{verb} {table}" for verb in ("INSERT INTO", "UPDATE", "DELETE FROM") for table in ("executor", "heartbeat")
)


@cache
def kind_of(words: str) -> str:
    """Classify a step by what it writes or locks."""
    name = words.removeprefix(AUTOCOMMIT).removeprefix(LOCKED)
    if name in READ_ONLY or (name.startswith("SELECT") and " FOR " not in name):
        return "read"
    if name in ("COMMIT", "ROLLBACK", "go on") or words.startswith(AUTOCOMMIT):
        return "end"
    if name in (CLOCK, TIME_PASSES):
        return name
    for kind, beginnings in TABLES_OF_LIMITS.items():
        if name.startswith(beginnings):
            return kind
    for kind, words_of_kind in TABLES_OF_SCHEDULES.items():
        if any(part in name for part in words_of_kind):
            return kind
    if name == "send" or name.startswith("INSERT INTO inboxmessage"):
        return "send"
    if name in ("consume_messages", "delete_messages") or name.startswith(
        ("UPDATE inboxmessage", "DELETE FROM inboxmessage")
    ):
        return "messages"
    if name == "heartbeat" or name.startswith(EXECUTORS):
        return "executor"
    if name == "enqueue" or name.startswith("INSERT INTO task "):
        return "new task"
    if " FOR UPDATE" in name or name.startswith("DELETE FROM task "):
        return "deletion"
    is_locked = words.startswith(LOCKED) and (name in ("commit", "wake") or name.startswith("UPDATE task "))
    if is_locked or name == "settle_limits":
        return "own task"
    return "task"


def sampled(run: RunOne, lengths: Sequence[int], seed: int) -> Iterator[Order]:
    for number in count():
        yield run(shuffled(lengths, Random(f"{seed}-{number}")))


# --- ways to choose


def serially(numbers: Sequence[int]) -> Choose:
    return lambda runnable: min(runnable, key=lambda client: numbers.index(client.number))


def following(labels: str) -> Choose:
    rest = iter(labels)

    def choose(runnable: Sequence[Client]) -> Client:
        label = next(rest, "")
        return next((client for client in runnable if client.label == label), runnable[0])

    return choose


def shuffled(lengths: Sequence[int], random: Random) -> Choose:
    """Choose as a shuffled deck of all steps would: each order is equally likely."""
    left = list(lengths)

    def choose(runnable: Sequence[Client]) -> Client:
        (client,) = random.choices(runnable, [max(1, left[client.number]) for client in runnable])
        left[client.number] -= 1
        return client

    return choose
