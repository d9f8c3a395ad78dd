"""One call of a step: its recorded result, or an attempt whose result is recorded."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import lru_cache
from inspect import unwrap
from typing import Any, NoReturn, get_type_hints

import msgspec
from django.db import DataError, IntegrityError
from msgspec.structs import replace

from jobqueue.declarations.replay import Replay, arguments_of, digest
from jobqueue.declarations.step import DeclaredStep, running_step
from jobqueue.exceptions import GiveUp, InvalidResult, NonDeterminism, Retry, StepFailed
from jobqueue.values import typed
from jobqueue.values.journal import Entry, EntryKind, EntryStatus, Waiting

LONGEST_WAIT_SECONDS = 3650 * 86_400.0  # between two attempts
PLAIN = (str, int, float, bool, type(None))  # JSON returns values of these types unchanged


def run_step(
    replay: Replay,
    step: DeclaredStep[..., Any],
    kind: EntryKind,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """
    Return the recorded result of a step, or run it and record its result.

    Raises StepFailed after the last attempt. Before, it suspends until the next one.
    """
    recorder, arguments = replay.recorder, digest(args, kwargs, step.parameters)
    entry = replay.find(name, kind, arguments)
    match entry:
        case Entry(status=EntryStatus.SUCCESSFUL):
            return decode_result(replay, entry, step.function)
        case Entry(status=EntryStatus.FAILED):
            raise StepFailed(name, entry.attempts, decode_error(entry))
        case Entry():
            replay.raise_if_cancelled(name)
            if entry.due_at is not None and entry.due_at > recorder.now():
                replay.suspend(Waiting(name=name, kind="retry", until=entry.due_at))
    if not step.atomic or replay.unwritten.spawn:  # an atomic one is written together with them, or leaves nothing
        replay.record_choices(name)
    begun = Entry(
        name=name,
        kind=kind,
        status=EntryStatus.SUCCESSFUL,
        attempts=1 if entry is None else entry.attempts + 1,
        started_at=recorder.now(),
        **arguments_of(arguments),
    )
    unwritten, is_recorded = replay.unwritten, False
    token = running_step.set(f"{make_idempotency_key(replay)}:{name}")
    try:
        with recorder.transaction() if step.atomic else nullcontext():
            value = recorder.call(step, args, kwargs)
            text = recorder.encode(value)
            returned = as_later(value, text, step.function)
            replay.write(replace(begun, value=text, finished_at=recorder.now()))
            replay.record()
            is_recorded = True
    except Exception as error:
        if is_recorded and not isinstance(error, (IntegrityError, DataError)):
            raise replay.close(error) from error  # the COMMIT may have succeeded: the next run reads the journal
        replay.unwritten = unwritten  # the transaction of an atomic step has rolled back what it wrote
        fail(replay, step, begun, error)
    finally:
        running_step.reset(token)
    return returned


def fail(replay: Replay, step: DeclaredStep[..., Any], begun: Entry, error: Exception) -> NoReturn:
    """Record a failed attempt. Wait for the next one, or raise StepFailed."""
    recorder = replay.recorder
    entry = replace(begun, error=recorder.describe(error, begun.attempts))
    seconds = (step.backoff or recorder.options.backoff).seconds(entry.attempts)
    if isinstance(error, Retry) and error.after is not None:
        seconds = error.after
    is_worth_it = not isinstance(error, (GiveUp, InvalidResult, *step.give_up_on)) and (
        step.retry_on is None or isinstance(error, (*step.retry_on, Retry))
    )
    if is_worth_it and entry.attempts < (step.max_attempts or recorder.options.max_attempts):
        due_at = recorder.now() + timedelta(seconds=min(seconds, LONGEST_WAIT_SECONDS))
        replay.write(replace(entry, status=EntryStatus.RETRYING, due_at=due_at))
        replay.suspend(Waiting(name=entry.name, kind="retry", until=due_at))
    replay.end(entry, EntryStatus.FAILED)
    replay.record()
    raise StepFailed(entry.name, entry.attempts, decode_error(entry)) from error


def decode_result(replay: Replay, entry: Entry, function: Any) -> Any:
    try:
        return decode_as(entry.value or "null", function)
    except InvalidResult as error:
        raise replay.close(
            NonDeterminism(
                f"The recorded result of {entry.name} does not fit the code: {error} Give new fields a default, "
                "or the step another name. Then requeue the workflow: it goes on."
            )
        ) from error


def make_idempotency_key(replay: Replay) -> str:
    """Return a text for other systems: the same in each attempt of a step, outside of steps in each run."""
    return running_step.get(f"{replay.recorder.task_id}:{replay.recorder.generation}")


def decode_error(entry: Entry) -> dict[str, Any]:
    error: dict[str, Any] | None = msgspec.json.decode(entry.error or "{}")
    return error or {}


def as_later(value: Any, text: str, function: Any) -> Any:
    """Return a new result as later runs get it. The 5 of a function that is annotated with float becomes 5.0."""
    is_plain = type(value) in PLAIN
    if is_plain and returned_type(function) in (Any, type(value)):
        return value
    try:
        return decode_as(text, function)
    except InvalidResult:
        if not is_plain:
            raise
        return value  # of another type than the function is annotated with


def decode_as(text: str, function: Any) -> Any:
    """Return a result in the type of the function's annotation. Raises InvalidResult if it does not fit."""
    kind = returned_type(function)
    try:
        return typed.decode_typed(text, kind)
    except ValueError as error:
        raise InvalidResult(f"the result is not {kind}, which the function is annotated with: {error}.") from error


def returned_type(function: Any) -> Any:
    """Return the annotation of a function's result; Any if it has none that JSON can be read as."""
    return read_type(function) if isinstance(function, Hashable) else read_type.__wrapped__(function)


@lru_cache(maxsize=1024)
def read_type(function: Any) -> Any:
    try:
        kind = get_type_hints(unwrap(function)).get("return", Any)
        typed.choose_reading(kind)
    except (TypeError, NameError, AttributeError):
        return Any
    return kind
