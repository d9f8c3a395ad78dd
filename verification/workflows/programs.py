"""
Random programs over all calls of a workflow. A program is a JSON value, so that a workflow can get it as an argument.

A block is a list of nodes. A node is a list that begins with the name of a call:

    ["step", n]                       a step with the effect n
    ["named", n]                      the same, under a name of its own
    ["async", n]                      a step that is an async function
    ["flaky", n, failures, attempts]  a step whose first tries fail
    ["atomic", n, failures]           an atomic step, which writes its effect in the transaction of its entry
    ["task", n]                       a step that is a task: it runs as a child
    ["sleep", hours]
    ["until", hours]                  sleep until a time, so long after now()
    ["receive", kinds, hours]         kinds: letters of message types; hours: None without a timeout
    ["gather", blocks, exceptions]    start a child for each block and wait for all of them
    ["first", blocks, count, hours]   start children and wait for the first ones
    ["ask", n, hours]                 start a child, send to it, and receive its reply
    ["compensate", n, failures, block]
    ["try", block, handler]           the handler runs if a step or child of the block failed
    ["loop", times, block]
    ["shield", block]
    ["value", kind, n]                now, uuid or random, as an argument of a step
    ["patched", name]
    ["progress", done]
    ["fail", n]                       raise an error that is none of a step
    ["continue", block]               continue_as_new with another program

A number n is used once in a program. All times are whole hours after the start; events of a script come at half hours,
so that no event has the time of another one by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

Node = list[Any]
Block = list[Node]

STEP_ATTEMPTS = 3  # of atomic steps and compensations
KINDS = "ABC"  # of messages
HOURS = 400  # the longest sleep or timeout
MAX_DEPTH = 3

SIMPLE = {
    "step": 6,
    "named": 3,
    "async": 1,
    "flaky": 3,
    "atomic": 5,
    "task": 1,
    "sleep": 3,
    "until": 1,
    "receive": 5,
    "value": 2,
    "patched": 1,
    "progress": 1,
    "ask": 1,
    "fail": 0.3,
}
NESTED = {"gather": 2, "first": 2, "compensate": 4, "try": 3, "loop": 2, "shield": 1}


@dataclass(frozen=True, slots=True)
class ScriptEvent:
    """Something that comes from outside at a time: a message with a number, or a cancel without."""

    hours: float  # after the start
    kind: str  # a letter of KINDS, or CANCEL
    number: int = 0


CANCEL = "cancel"


@dataclass(slots=True)
class Case:
    """A program with what comes from outside."""

    program: Block
    script: Sequence[ScriptEvent] = field(default_factory=tuple)


def random_case(random: Random) -> Case:
    program = Generator(random).program()
    events = [
        ScriptEvent(random.randrange(HOURS) + 0.5, random.choice(KINDS), 1000 + number)
        for number in range(random.choice((0, 1, 2, 3, 4, 6)))
    ]
    if random.random() < 0.25:
        events.append(ScriptEvent(random.randrange(HOURS) + 0.5, CANCEL))
    hours = {event.hours: event for event in events}  # no two at one time
    return Case(program, tuple(hours[at] for at in sorted(hours)))


class Generator:
    """Makes programs. It has more than 20 methods because each call has one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers = count(1)
        self._budget = random.choice((3, 5, 8, 12))

    def program(self) -> Block:
        block = self._block(0) or [["step", next(self._numbers)]]
        if self._random.random() < 0.08:
            block.append(["continue", self._block(1) or [["step", next(self._numbers)]]])
        elif self._random.random() < 0.05:
            block.append(["fail", next(self._numbers)])
        return block

    def _block(self, depth: int) -> Block:
        length = self._random.choice((1, 1, 2, 2, 3, 4) if depth else (2, 3, 4, 5, 6))
        return [self._node(depth) for _ in range(length) if self._spend()]

    def _spend(self) -> bool:
        self._budget -= 1
        return self._budget >= 0

    def _hours(self) -> int:
        return self._random.randint(1, HOURS)

    def _node(self, depth: int) -> Node:
        weights = SIMPLE | NESTED if depth < MAX_DEPTH else SIMPLE
        (name,) = self._random.choices(list(weights), list(weights.values()))
        return getattr(self, f"_make_{name}", self._make_effect)(name, depth)

    def _make_effect(self, name: str, depth: int) -> Node:
        return [name, next(self._numbers)]

    def _make_flaky(self, name: str, depth: int) -> Node:
        attempts = self._random.randint(1, 4)
        return [name, next(self._numbers), self._random.randint(0, attempts), attempts]

    def _make_atomic(self, name: str, depth: int) -> Node:
        return [name, next(self._numbers), self._random.choice((0, 0, 0, 1, 2, STEP_ATTEMPTS))]

    def _make_sleep(self, name: str, depth: int) -> Node:
        return [name, self._hours()]

    _make_until = _make_sleep

    def _make_receive(self, name: str, depth: int) -> Node:
        kinds = "".join(sorted(self._random.sample(KINDS, self._random.choice((1, 1, 2)))))
        # Children get no messages from outside, so they need a timeout.
        timeout = self._hours() if depth or self._random.random() < 0.8 else None
        return [name, kinds, timeout]

    def _make_value(self, name: str, depth: int) -> Node:
        return [name, self._random.choice(("now", "uuid", "random")), next(self._numbers)]

    def _make_patched(self, name: str, depth: int) -> Node:
        return [name, f"change-{self._random.randint(1, 2)}"]

    def _make_progress(self, name: str, depth: int) -> Node:
        return [name, self._random.randint(0, 9)]

    def _make_ask(self, name: str, depth: int) -> Node:
        return [name, next(self._numbers), self._hours()]

    def _make_gather(self, name: str, depth: int) -> Node:
        return [name, self._children(depth), self._random.random() < 0.5]

    def _make_first(self, name: str, depth: int) -> Node:
        children = self._children(depth)
        timeout = self._hours() if self._random.random() < 0.3 else None
        return [
            name,
            [[["sleep", self._hours()], *block] for block in children],
            self._random.randint(1, len(children)),
            timeout,
        ]

    def _children(self, depth: int) -> list[Block]:
        blocks = [self._block(max(depth + 1, 1)) for _ in range(self._random.randint(1, 3))]
        return [block or [["step", next(self._numbers)]] for block in blocks]

    def _make_compensate(self, name: str, depth: int) -> Node:
        number = next(self._numbers)
        failures = self._random.choice((0, 0, 0, 1, 2))  # it always succeeds in the end
        return [name, number, failures, self._block(depth + 1)]

    def _make_try(self, name: str, depth: int) -> Node:
        return [name, self._block(depth + 1), self._block(depth + 1)]

    def _make_loop(self, name: str, depth: int) -> Node:
        return [name, self._random.randint(2, 3), self._block(depth + 1)]

    def _make_shield(self, name: str, depth: int) -> Node:
        return [name, self._block(depth + 1)]


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases that are smaller by one event, by one node, or by a node around a block."""
    for number in range(len(case.script)):
        yield Case(case.program, (*case.script[:number], *case.script[number + 1 :]))
    for block in _smaller_blocks(case.program):
        if block:
            yield Case(block, case.script)


def _smaller_blocks(block: Block) -> Iterator[Block]:
    for number, node in enumerate(block):
        before, after = block[:number], block[number + 1 :]
        yield [*before, *after]
        for position, part in enumerate(node):
            if _is_block(part):
                yield [*before, *part, *after]
                for small in _smaller_blocks(part):
                    if small:
                        yield [*before, [*node[:position], small, *node[position + 1 :]], *after]
            elif _is_blocks(part):
                for child, blocks in enumerate(part):
                    others = [*part[:child], *part[child + 1 :]]
                    if others and node[0] == "gather":
                        yield [*before, [*node[:position], others, *node[position + 1 :]], *after]
                    for small in _smaller_blocks(blocks):
                        if small:
                            changed = [*part[:child], small, *part[child + 1 :]]
                            yield [*before, [*node[:position], changed, *node[position + 1 :]], *after]


def _is_block(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(node, list) and node and isinstance(node[0], str) for node in part)


def _is_blocks(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and not _is_block(part) and all(map(_is_block, part))
