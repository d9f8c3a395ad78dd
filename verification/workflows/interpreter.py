"""
What a program must do: a plain interpreter, in which nothing is stored, nothing is repeated, and nothing crashes.

Each task of the program is a generator that runs until it waits. Time passes only when all of them wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from verification.workflows.programs import CANCEL, STEP_ATTEMPTS, Block, Case, Node, ScriptEvent

BACKOFF_HOURS = 7.0  # after the first failed try of a step; doubles
MAX_EVENTS = 1000


class Unsuccessful(Exception):
    """A step, or a child, has failed for good."""


class BodyError(Exception):
    """An error of the body."""


class ToBeCancelled(BaseException):
    """The task learns that it is to be cancelled."""


class BeginsAgain(BaseException):
    """The task goes on with another program."""


class Ambiguous(Exception):
    """Two events have the same time, so that there is more than one correct result."""


@dataclass(slots=True)
class Wait:
    """What a process waits for. Nothing but a time: a sleep."""

    until: float | None = None
    kinds: str = ""  # of messages
    children: Sequence[PlainTask] = ()
    count: int = 0  # how many children must have ended
    is_protected: bool = False  # a cancel does not end it


Walk = Generator[Wait, Any, Any]


@dataclass(eq=False)
class PlainTask:
    """A task that runs a program."""

    program: Block
    inbox: list[tuple[str, int, PlainTask | None]] = field(default_factory=list)
    parent: PlainTask | None = None
    status: str | None = None  # the final one
    result: Any = None
    wait: Wait | None = None
    walk: Walk | None = None
    out: list[Any] = field(default_factory=list)
    sender: PlainTask | None = None  # of the last message that it received
    asked: PlainTask | None = None
    is_cancelled: bool = False  # a cancel was requested
    protected: int = 0  # shields and compensations around the call
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The result of a program. A status of None: it waits for ever."""

    status: str | None
    result: Any
    effects: Counter[int]  # how often each effect happens, if nothing is repeated
    atomic: frozenset[int]  # the effects that must happen exactly so often
    statuses: Counter[str]  # of all tasks of the program
    calls: Counter[int]  # how many calls each effect has: each of them has one idempotency key


def interpret(case: Case) -> Expected:
    """Run a program. Raises Ambiguous if its result depends on which of two events at one time comes first."""
    return _World(case).run()


class _World:
    def __init__(self, case: Case) -> None:
        self.now = 0.0
        self.script = list(case.script)
        self.effects: Counter[int] = Counter()
        self.atomic: set[int] = set()
        self.calls: Counter[int] = Counter()
        self.processes: list[PlainTask] = []
        self.root = self.start(case.program, None)

    def run(self) -> Expected:
        for _ in range(MAX_EVENTS):
            while any(self.advance(process) for process in self.processes):
                pass
            times = [p.wait.until for p in self.live() if p.wait and p.wait.until is not None]
            times += [event.hours for event in self.script[:1]]
            if not times:
                break
            self.now = min(times)
            if self.script and self.script[0].hours == self.now:
                self.happen(self.script.pop(0))
        statuses = Counter(process.status or "WAITS" for process in self.processes)
        return Expected(self.root.status, self.root.result, self.effects, frozenset(self.atomic), statuses, self.calls)

    def live(self) -> Iterator[PlainTask]:
        return (process for process in self.processes if process.status is None)

    def happen(self, event: ScriptEvent) -> None:
        if self.root.status is not None:
            return
        if event.kind == CANCEL:
            self.root.is_cancelled = True
        else:
            self.root.inbox.append((event.kind, event.number, None))

    def start(self, program: Block, parent: PlainTask | None) -> PlainTask:
        process = PlainTask(program, parent=parent)
        process.walk = self.whole(process)
        self.processes.append(process)
        return process

    # --- waits

    def advance(self, process: PlainTask) -> bool:
        """Run a process until its next wait, if it need not wait any more. Return whether it ran."""
        if process.status is not None or process.walk is None:
            return False
        answer: Any = None
        error: BaseException | None = None
        if (wait := process.wait) is not None:
            if process.is_cancelled and not wait.is_protected:
                error = ToBeCancelled()
            elif (answer := self.answer(process, wait)) is None:
                return False
        process.wait = None
        try:
            process.wait = process.walk.throw(error) if error is not None else process.walk.send(answer)
        except StopIteration as end:
            self.end(process, "SUCCESSFUL", end.value)
        except ToBeCancelled:
            self.end(process, "CANCELLED")
        except (Unsuccessful, BodyError):
            self.end(process, "FAILED")
        except BeginsAgain as again:
            process.program, process.out = again.args[0], []
            process.walk = self.whole(process)
        return True

    def end(self, process: PlainTask, status: str, result: Any = None) -> None:
        process.status, process.result, process.ended_at = status, result, self.now

    def answer(self, process: PlainTask, wait: Wait) -> Any:
        """Return what a wait gives, in a list; None if it goes on."""
        is_due = wait.until is not None and wait.until <= self.now
        if wait.children:
            ended = [child for child in wait.children if child.status is not None]
            if len(ended) > wait.count or (is_due and any(child.ended_at == self.now for child in ended)):
                raise Ambiguous
            if len(ended) == wait.count:
                return [ended]
            return [ended] if is_due else None
        if wait.kinds:
            for message in process.inbox:
                if message[0] in wait.kinds:
                    process.inbox.remove(message)
                    process.sender = message[2]
                    return [message]
            return [None] if is_due else None
        return [None] if is_due else None

    # --- the calls

    def whole(self, process: PlainTask) -> Walk:
        yield from self.block(process, process.program)
        return process.out

    def block(self, process: PlainTask, nodes: Block) -> Walk:
        for node in nodes:
            yield from self.node(process, node)

    def node(self, process: PlainTask, node: Node) -> Walk:
        out = process.out
        match node:
            case ["step" | "named" | "async", number]:
                self.check(process)
                self.effects[number] += 1
                self.calls[number] += 1
                out.append(number)
            case ["flaky", number, failures, attempts]:
                yield from self.tries(process, number, failures, attempts)
                out.append(number)
            case ["atomic", number, failures]:
                self.atomic.add(number)
                yield from self.tries(process, number, failures, STEP_ATTEMPTS, is_atomic=True)
                out.append(number)
            case ["task", number]:
                self.check(process)
                child = self.start([["step", number]], process)
                yield from self.until(process, Wait(children=[child], count=1))
                out.append(number)
            case ["sleep" | "until", hours]:
                self.check(process)
                yield from self.until(process, Wait(until=self.now + hours))
            case ["receive", kinds, hours]:
                out.append((yield from self.receive(process, kinds, hours)))
            case ["gather", blocks, has_exceptions]:
                self.check(process)
                children = [self.start(block, process) for block in blocks]
                yield from self.until(process, Wait(children=children, count=len(children)))
                if not has_exceptions and any(child.status != "SUCCESSFUL" for child in children):
                    raise Unsuccessful
                out.append([child.result if child.status == "SUCCESSFUL" else "failed" for child in children])
            case ["first", blocks, count, hours]:
                self.check(process)
                children = [self.start(block, process) for block in blocks]
                until = None if hours is None else self.now + hours
                ended = yield from self.until(process, Wait(until=until, children=children, count=count))
                out.append([children.index(child) for child in ended])
            case ["ask", number, hours]:
                self.check(process)
                child = self.start([["sleep", hours], ["receive", "A", None], ["reply", number]], process)
                child.inbox.append(("A", number, process))
                out.append((yield from self.receive(process, "R", None)))
                yield from self.until(process, Wait(children=[child], count=1))
                out.append(child.result)
            case ["reply", number]:
                self.check(process)
                if process.sender is not None:
                    if process.sender.status is not None:
                        raise BodyError  # TaskFinished
                    process.sender.inbox.append(("R", number, process))
            case ["compensate", number, failures, block]:
                try:  # a cancel that comes between a step and its compensation raises inside
                    yield from self.block(process, block)
                except (Unsuccessful, BodyError, ToBeCancelled):
                    with protected(process):
                        self.atomic.add(number)
                        yield from self.tries(process, number, failures, STEP_ATTEMPTS, is_atomic=True)
                    raise
            case ["try", block, handler]:
                try:
                    yield from self.block(process, block)
                except Unsuccessful:
                    out.append("failed")
                    yield from self.block(process, handler)
            case ["loop", times, block]:
                for _ in range(times):
                    yield from self.block(process, block)
            case ["shield", block]:
                with protected(process):
                    yield from self.block(process, block)
            case ["value", _, number]:
                self.check(process)
                self.effects[number] += 1
                self.calls[number] += 1
            case ["patched", _]:
                out.append(True)
            case ["progress", _]:
                pass
            case ["fail", number]:
                raise BodyError(number)
            case ["continue", block]:
                self.check(process)
                raise BeginsAgain(block)
            case _:
                raise ValueError(node)

    def check(self, process: PlainTask) -> None:
        if process.is_cancelled and not process.protected:
            raise ToBeCancelled

    def until(self, process: PlainTask, wait: Wait) -> Generator[Wait, Any, Any]:
        wait.is_protected = process.protected > 0
        answer = yield wait
        return answer[0]

    def receive(self, process: PlainTask, kinds: str, hours: float | None) -> Generator[Wait, Any, Any]:
        self.check(process)
        until = None if hours is None else self.now + hours
        message = yield from self.until(process, Wait(until=until, kinds=kinds))
        return "none" if message is None else f"{message[0]}{message[1]}"

    def tries(
        self, process: PlainTask, number: int, failures: int, attempts: int, *, is_atomic: bool = False
    ) -> Generator[Wait, Any, None]:
        self.check(process)
        self.calls[number] += 1
        for attempt in range(attempts):
            self.check(process)
            if attempt >= failures:
                self.effects[number] += 1
                return
            if not is_atomic:
                self.effects[number] += 1  # before it fails
            if attempt + 1 < attempts:
                yield from self.until(process, Wait(until=self.now + BACKOFF_HOURS * 2**attempt))
        raise Unsuccessful(number)


@contextmanager
def protected(process: PlainTask) -> Iterator[None]:
    process.protected += 1
    try:
        yield
    finally:
        process.protected -= 1
