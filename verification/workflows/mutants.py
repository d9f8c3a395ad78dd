"""Deliberately broken workflows. Each is wrong in one plausible way, and random programs must detect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from jobqueue.declarations import step_run
from jobqueue.declarations.replay import Replay, Unwritten
from jobqueue.declarations.workflow_context import WorkflowContext
from jobqueue.exceptions import ClaimLost
from jobqueue.executor.running.workflow_runner import WorkflowRun
from jobqueue.testing.workflow_stub import MemoryEngine
from jobqueue.values.journal import Entry, EntryStatus
from verification.workflows.driver import EXACTLY_ONCE, NOT_LOST, ONCE, ONE_KEY, RESULT, STATUS, TASKS
from verification.workflows.memory import FaultyEngine

MAX_SEEDS = 1_000


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken part. problems: how the report may start. seed: where the search starts, if few programs detect it."""

    name: str
    wrong: str
    broken: Callable[[], AbstractContextManager[Any]]
    problems: tuple[str, ...]
    seed: int = 1


def records_without_what_precedes() -> AbstractContextManager[Any]:
    def record(self: Replay, *refusals: type[Exception]) -> None:
        """Write the step alone."""
        name, entry = list(self.unwritten.entries.items())[-1]
        self.recorder.record([entry], Unwritten().effects(False))
        del self.unwritten.entries[name]

    return patch.object(Replay, "record", record)


def forgets_timeouts() -> AbstractContextManager[Any]:
    end = Replay.end

    def forgetful(self: Replay, entry: Entry, status: EntryStatus) -> Entry:
        if status is not EntryStatus.TIMED_OUT:
            return end(self, entry, status)
        self.unwritten.entries.pop(entry.name, None)
        return replace(entry, status=status)

    return patch.object(Replay, "end", forgetful)


def gives_each_attempt_a_key() -> AbstractContextManager[Any]:
    attempts = iter(range(10**9))
    make_key = step_run.make_idempotency_key
    return patch.object(step_run, "make_idempotency_key", lambda replay: f"{make_key(replay)}:{next(attempts)}")


def records_atomic_steps_alone() -> AbstractContextManager[Any]:
    return patch.object(FaultyEngine, "transaction", lambda self: nullcontext())


def forgets_ends_of_children() -> AbstractContextManager[Any]:
    fold = WorkflowRun._fold

    def forgetful(self: WorkflowRun, entries: Any) -> Replay:
        folded = fold(self, entries)
        folded.unwritten.entries.clear()
        return folded

    return patch.object(WorkflowRun, "_fold", forgetful)


@contextmanager
def records_for_a_lost_claim() -> Iterator[None]:
    record = MemoryEngine.record

    def careless(self: MemoryEngine, claimed: Any, executor_id: Any, entries: Any, effects: Any) -> bool:
        with suppress(ClaimLost):
            return record(self, claimed, executor_id, entries, effects)
        self._write(self.tasks[claimed.id], entries)
        return False

    with patch.object(MemoryEngine, "record", careless):
        yield


def receives_the_newest() -> AbstractContextManager[Any]:
    take = WorkflowContext._take

    def backwards(self: WorkflowContext, *arguments: Any) -> Any:
        self._replay.inbox.reverse()
        try:
            return take(self, *arguments)
        finally:
            self._replay.inbox.reverse()

    return patch.object(WorkflowContext, "_take", backwards)


MUTANTS = [
    Mutant(
        "record",
        "Records a step before the calls that precede it.",
        records_without_what_precedes,
        (STATUS, RESULT, TASKS, EXACTLY_ONCE, NOT_LOST, ONCE, "raised"),
    ),
    Mutant(
        "receive",
        "Does not record that a wait has timed out.",
        forgets_timeouts,
        (RESULT, STATUS, TASKS, NOT_LOST, EXACTLY_ONCE, ONCE),
        seed=1_100,
    ),
    Mutant("receive", "Returns the newest message first.", receives_the_newest, (RESULT, STATUS)),
    Mutant("step", "Has another idempotency key in each attempt.", gives_each_attempt_a_key, (ONE_KEY,)),
    Mutant("step", "Records an atomic step after its transaction.", records_atomic_steps_alone, (EXACTLY_ONCE,)),
    Mutant(
        "gather",
        "Consumes the end of a child, and does not record it.",
        forgets_ends_of_children,
        (STATUS, TASKS, NOT_LOST, RESULT),
    ),
    Mutant(
        "record",
        "Records a call of a lost claim.",
        records_for_a_lost_claim,
        (EXACTLY_ONCE, NOT_LOST, STATUS, RESULT),
    ),
]
