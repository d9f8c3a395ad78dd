"""The workflow that runs a program of programs.py, with its steps and messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async

from jobqueue import Backoff, StepFailed, WorkflowContext, step, step_key, task, workflow
from jobqueue.engine import engine_for
from jobqueue.exceptions import ChildFailed
from jobqueue.models import JournalEntry
from jobqueue.values.journal import EntryStatus
from tests.models import Effect
from verification.workflows.interpreter import BACKOFF_HOURS
from verification.workflows.programs import STEP_ATTEMPTS, Block, Node

BACKOFF = Backoff(base=BACKOFF_HOURS * 3600, factor=2.0, cap=1e9, jitter=0.0)
keys: defaultdict[int, set[str]] = defaultdict(set)  # the idempotency keys that the steps of an effect have seen


@dataclass
class A:
    number: int


@dataclass
class B:
    number: int


@dataclass
class C:
    number: int


@dataclass
class R:
    number: int


MESSAGES: dict[str, Any] = {"A": A, "B": B, "C": C, "R": R}


class PlannedFailure(Exception):
    """A step fails as its program wants."""


class PlannedError(Exception):
    """The body fails as its program wants."""


def database() -> str:
    return engine_for("default").database


def add_effect(task_id: str, number: int) -> None:
    Effect.objects.using(database()).create(task_id=task_id, kind=str(number), pid=0)


def write_effect(task_id: str, number: int) -> int:
    keys[number].add(step_key())
    add_effect(task_id, number)
    return number


def tries_of(task_id: str, name: str) -> int:
    """Return how many tries of a step are recorded."""
    entries = JournalEntry.objects.using(database()).filter(task_id=task_id, status=EntryStatus.RETRYING)
    entry = entries.filter(name=name, due_at__isnull=False).first()
    return 0 if entry is None else entry.attempts


def failed_tries(task_id: str) -> int:
    return tries_of(task_id, step_key().rpartition(":")[2])


def write_or_fail(task_id: str, number: int, failures: int, *, is_effect_first: bool) -> int:
    is_failure = failed_tries(task_id) < failures
    if is_effect_first or not is_failure:
        write_effect(task_id, number)
    if is_failure:
        raise PlannedFailure(number)
    return number


@step(max_attempts=1)
def effect(task_id: str, number: int) -> int:
    return write_effect(task_id, number)


@step(max_attempts=1)
async def async_effect(task_id: str, number: int) -> int:
    keys[number].add(step_key())
    await sync_to_async(add_effect)(task_id, number)
    return number


@step(backoff=BACKOFF)
def flaky(task_id: str, number: int, failures: int) -> int:
    return write_or_fail(task_id, number, failures, is_effect_first=True)


@step(backoff=BACKOFF, max_attempts=STEP_ATTEMPTS, atomic=True)
def atomic(task_id: str, number: int, failures: int) -> int:
    write_or_fail(task_id, number, 0, is_effect_first=True)  # an effect that a failure rolls back
    if failed_tries(task_id) < failures:
        raise PlannedFailure(number)
    return number


@step(backoff=BACKOFF, max_attempts=STEP_ATTEMPTS, atomic=True)
def undo(task_id: str, number: int, failures: int) -> int:
    return atomic.function(task_id, number, failures)


@step(max_attempts=1)
def use(task_id: str, number: int, value: str) -> int:
    """Take a value of the context as an argument, so that the journal compares it in each run."""
    return write_effect(task_id, number)


@task(max_attempts=1)
def child_effect(task_id: str, number: int) -> list[int]:
    add_effect(task_id, number)
    return [number]


@workflow(max_attempts=1)
def run_program(context: WorkflowContext, program: Block) -> list[Any]:
    """Run a program. Return what its calls gave."""
    out: list[Any] = []
    run_block(context, program, out)
    return out


def run_block(context: WorkflowContext, nodes: Block, out: list[Any]) -> None:
    for node in nodes:
        run_node(context, node, out)


def run_node(context: WorkflowContext, node: Node, out: list[Any]) -> None:
    me = str(context.id)
    match node:
        case ["step", number]:
            out.append(context.step(effect, me, number))
        case ["named", number]:
            out.append(context.step(effect.using(name=f"effect-{number}"), me, number))
        case ["async", number]:
            out.append(context.step(async_effect, me, number))
        case ["flaky", number, failures, attempts]:
            out.append(context.step(flaky.using(max_attempts=attempts), me, number, failures))
        case ["atomic", number, failures]:
            out.append(context.step(atomic, me, number, failures))
        case ["task", number]:
            effects: Any = context.step(child_effect, me, number)
            out.extend(effects)
        case ["sleep", hours]:
            context.sleep(timedelta(hours=hours))
        case ["until", hours]:
            context.sleep_until(context.now() + timedelta(hours=hours))
        case ["receive", kinds, hours]:
            timeout = None if hours is None else timedelta(hours=hours)
            out.append(text_of(context.receive(*(MESSAGES[kind] for kind in kinds), timeout=timeout)))
        case ["gather", blocks, has_exceptions]:
            handles = [context.spawn(run_program, block) for block in blocks]
            results: Any = context.gather(*handles, return_exceptions=has_exceptions)
            out.append(["failed" if isinstance(result, ChildFailed) else result for result in results])
        case ["first", blocks, count, hours]:
            handles = [context.spawn(run_program, block) for block in blocks]
            timeout = None if hours is None else timedelta(hours=hours)
            out.append([handles.index(handle) for handle in context.wait(*handles, count=count, timeout=timeout)])
        case ["ask", number, hours]:
            handle = context.spawn(run_program, [["sleep", hours], ["receive", "A", None], ["reply", number]])
            context.send(handle, A(number))
            out.append(text_of(context.receive(R)))
            out.extend(context.gather(handle))
        case ["reply", number]:
            context.reply(R(number))
        case ["compensate", number, failures, block]:
            with context.compensate(undo, me, number, failures):
                run_block(context, block, out)
        case ["try", block, handler]:
            try:
                run_block(context, block, out)
            except (StepFailed, ChildFailed):
                out.append("failed")
                run_block(context, handler, out)
        case ["loop", times, block]:
            for _ in range(times):
                run_block(context, block, out)
        case ["shield", block]:
            with context.shield():
                run_block(context, block, out)
        case ["value", kind, number]:
            context.step(use, me, number, str(getattr(context, kind)()))
        case ["patched", name]:
            out.append(context.patched(name))
        case ["progress", done]:
            context.progress(done, 10)
        case ["fail", number]:
            raise PlannedError(number)
        case ["continue", block]:
            context.continue_as_new(block)
        case _:
            raise ValueError(node)


def text_of(message: Any) -> str:
    return "none" if message is None else f"{type(message).__name__}{message.number}"
