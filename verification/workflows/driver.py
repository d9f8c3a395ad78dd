"""Run a program on the queue of this process, with crashes and lost claims, and compare it with the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

import jobqueue
from jobqueue.engine import Engine, engine_for
from jobqueue.models import InboxMessage, JournalEntry, Task
from jobqueue.testing.crashes import CrashingExecutor, play, rescue
from jobqueue.testing.queue import _Queue
from jobqueue.testing.schedule_time import move_back
from jobqueue.values.journal import OPEN, EntryKind
from jobqueue.values.records import ClaimedTask, ClaimRequest
from jobqueue.values.states import FINAL, Status
from tests.models import Effect
from verification.workflows import bodies
from verification.workflows.interpreter import Expected, interpret
from verification.workflows.programs import CANCEL, Case, ScriptEvent

MAX_FAULTS = 3
MAX_POLLS = 1000  # between two waits
WAITS = (Status.READY, Status.SUSPENDED, Status.SCHEDULED)

STATUS = "the task has the status of the interpreter"
RESULT = "the task has the result of the interpreter"
TASKS = "all tasks of the program end as in the interpreter"
EXACTLY_ONCE = "an atomic step has its effect exactly once"
NOT_LOST = "a step has its effect, and no other step has"
ONCE = "without a crash, a step runs once"
ONE_KEY = "the idempotency key of a step is the same in each try"
COMPENSATED = "no compensation is left open in a task that has succeeded or was cancelled"


class ShortQueue(_Queue):
    """The queue of a test, without what programs do not use: limits, pauses and schedules."""

    def run_until_idle(self) -> None:
        for _ in range(MAX_POLLS):
            if (claimed := self.claim()) is None:
                return
            self.poll(claimed)
        raise AssertionError(f"not idle after {MAX_POLLS} polls")

    def claim(self) -> ClaimedTask | None:
        request = ClaimRequest(executor_id=self._executor_id, queues=["default"], limit=1)
        while True:
            if claimed := self.engine.claims.claim(request) or self.engine.claims.claim_isolated(request):
                return claimed[0]
            if not self.wake():
                return None

    def wake(self) -> int:
        unread = self.engine.db.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        newer = unread.filter(sent_at__gt=OuterRef("last_attempted_at"))
        sleepers = self.engine.db.tasks.suspended().filter(Q(Exists(unread), unread_polls=0) | Exists(newer))
        ids = list(sleepers.values_list("pk", flat=True))
        return self.engine.inbox.wake_due() + (self.engine.messages.wake(ids) if ids else 0)


@dataclass(eq=False)
class FaultyExecutor(CrashingExecutor):
    """
    A process that also loses its claims: at some writes another executor takes them and runs on, and this one goes on.

    thefts: numbers of writes before which it happens.
    """

    thefts: Collection[int] = ()
    stolen: int = 0
    _is_off: bool = False

    def work(self) -> None:
        ShortQueue(self.engine).run_until_idle()

    def pass_time(self, time: timedelta) -> None:
        for model in (Task, JournalEntry, InboxMessage):
            move_back(model._default_manager.using(self.engine.database).all(), time)

    def _execute(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Mapping[str, Any]
    ) -> Any:
        if self._is_off:
            return execute(sql, params, many, context)
        return super()._execute(execute, sql, params, many, context)

    def reach(self, connection: Any, text: str, *, is_after: bool) -> None:
        if self._number in self.thefts and not is_after and not self._outermost:
            self.stolen += 1
            self._is_off = True
            try:
                rescue(self.engine)
                self.work()
            finally:
                self._is_off = False
        super().reach(connection, text, is_after=is_after)


@dataclass
class Observed:
    """What a program has done on the queue."""

    status: str | None
    result: Any
    effects: Counter[int]
    statuses: Counter[str]
    keys: dict[int, int]  # how many idempotency keys the steps of an effect have seen
    open_compensations: int
    error: str
    faults: int
    writes: int
    journal: list[tuple[Any, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Faults:
    crashes: Sequence[tuple[int, bool]] = ()
    thefts: Sequence[int] = ()

    @classmethod
    def random(cls, random: Random, writes: int) -> Faults:
        numbers = [random.randint(1, max(writes, 1)) for _ in range(random.randint(1, MAX_FAULTS))]
        kinds = [random.choice(("before", "after", "theft")) for _ in numbers]
        pairs = list(zip(numbers, kinds, strict=True))
        return cls(
            crashes=[(number, kind == "after") for number, kind in pairs if kind != "theft"],
            thefts=[number for number, kind in pairs if kind == "theft"],
        )


def run(case: Case, faults: Faults = Faults()) -> Observed:
    """Run a program from its enqueue until it waits for nothing that comes. Its rows are rolled back."""
    engine = engine_for("default")
    bodies.keys.clear()
    process = FaultyExecutor(engine, faults.crashes, thefts=faults.thefts)
    with transaction.atomic(using=engine.database):
        result = bodies.run_program.enqueue(case.program)
        play(process, [(timedelta(hours=event.hours), partial(happen, event, result.id)) for event in case.script])
        observed = observe(engine, UUID(result.id), process)
        transaction.set_rollback(True, using=engine.database)
    return observed


def happen(event: ScriptEvent, pk: str) -> None:
    """Let an event of a script happen."""
    if event.kind == CANCEL:
        jobqueue.cancel(pk)
        return
    with suppress(jobqueue.TaskFinished):
        jobqueue.send(pk, bodies.MESSAGES[event.kind](event.number))


def observe(engine: Engine, pk: UUID, process: FaultyExecutor) -> Observed:
    rows = list(engine.db.tasks.values_list("pk", "status"))
    ended = [row for row, status in rows if status in (Status.SUCCESSFUL, Status.CANCELLED)]
    root = engine.db.tasks.get(pk=pk)
    entries = JournalEntry.objects.using(engine.database)
    left_open = entries.filter(task_id__in=ended, kind=EntryKind.COMPENSATION, status__in=OPEN)
    return Observed(
        status=str(root.status) if root.status in FINAL else None,
        result=root.return_value,
        effects=Counter(int(kind) for kind in Effect.objects.using(engine.database).values_list("kind", flat=True)),
        statuses=Counter("WAITS" if status in WAITS else str(status) for _, status in rows),
        keys={number: len(keys) for number, keys in bodies.keys.items()},
        open_compensations=left_open.count(),
        error=str(root.errors[-1].get("message", ""))[:500] if root.errors else "",
        faults=process.crashed + process.stolen,
        writes=process._number,
        journal=list(entries.filter(task_id=pk).order_by("pk").values_list("name", "kind", "status", "value")),
    )


def problems(expected: Expected, observed: Observed) -> Iterator[str]:
    """Yield what is not as in the interpreter."""
    if observed.status != expected.status:
        yield f"{STATUS}: {observed.status}, not {expected.status}; {observed.error}"
    elif expected.status == Status.SUCCESSFUL and observed.result != expected.result:
        yield f"{RESULT}: {observed.result}, not {expected.result}"
    if observed.statuses != expected.statuses:
        yield f"{TASKS}: {dict(observed.statuses)}, not {dict(expected.statuses)}"
    for number in sorted(expected.effects.keys() | observed.effects.keys()):
        wanted, got = expected.effects[number], observed.effects[number]
        if number in expected.atomic:
            if wanted != got:
                yield f"{EXACTLY_ONCE}: effect {number} has {got} rows, not {wanted}"
        elif got < wanted or not wanted:
            yield f"{NOT_LOST}: effect {number} has {got} rows, not {wanted}"
        elif got > wanted and not observed.faults:
            yield f"{ONCE}: effect {number} has {got} rows, not {wanted}"
    for number, count in observed.keys.items():
        if count > expected.calls[number]:
            yield f"{ONE_KEY}: effect {number} has seen {count}, in {expected.calls[number]} calls"
    if observed.open_compensations:
        yield f"{COMPENSATED}: {observed.open_compensations}"


Run = Callable[..., Observed]


def check(case: Case, seed: int, run: Run = run) -> tuple[list[str], int]:
    """
    Run a case without faults, then with random ones. Return what is wrong, and how many faults happened.

    Raises Ambiguous if the case has more than one correct result.
    """
    expected = interpret(case)
    calm = run(case)
    if wrong := list(problems(expected, calm)):
        return wrong, 0
    faults = Faults.random(Random(seed), calm.writes)
    observed = run(case, faults)
    wrong = [f"with {faults}: {problem}" for problem in problems(expected, observed)]
    return wrong, observed.faults
