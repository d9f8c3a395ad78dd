"""
One claimed task: load, poll, outcome.

The engine does not know bodies and bodies do not know the engine; they meet here, and here is the
only broad `except`.
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from jobqueue import registry
from jobqueue.conf import Options
from jobqueue.context import Context
from jobqueue.exceptions import (
    Expired,
    FenceLost,
    GiveUp,
    InvalidResult,
    Retry,
    ShuttingDown,
    TaskCancelled,
    UndecodableTask,
    UnknownTask,
)
from jobqueue.executor.hold import Hold
from jobqueue.function import FunctionTask, Limits, limits
from jobqueue.outcome import Claimed, Outcome, Status, released
from jobqueue.payload import clean_text, decode, encode_result
from jobqueue.results import Result, from_claimed

UNKNOWN_AFTER_SECONDS = (
    15.0  # a task that no code here knows comes back after this, for an executor that knows it
)
TRACEBACK_CHARACTERS = 16_000
MESSAGE_CHARACTERS = 2_000
OUR_FILES = __file__.rsplit("/", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Who runs the task: the executor, as rows and people know it, and the backend's OPTIONS."""

    executor_id: str
    executor_name: str
    options: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A claimed task, ready to be polled."""

    task: FunctionTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    limits: Limits
    result: Result


@dataclass(frozen=True, slots=True)
class Returned:
    """The body came to its end."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The body raised."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a poll. is_committed: its outcome is in the database already (an atomic body)."""

    hold: Hold
    outcome: Outcome
    result: Result | None = None
    error: BaseException | None = None
    is_committed: bool = False
    seconds: float = 0.0


def load(hold: Hold, worker: Worker) -> Loaded | Ended:
    """Find the code of a claimed task and decode its row; whatever is wrong with one row is its own outcome."""
    claimed = hold.claimed
    task = registry.get(claimed.task_type)
    if task is None:
        return Ended(hold=hold, outcome=unknown(claimed, worker))
    if claimed.is_expired:
        return refused(hold, Expired(), worker)
    try:
        args, kwargs = decode(claimed.args), decode(claimed.kwargs)
        stored = decode(claimed.options) if claimed.options != "{}" else {}
        result = from_claimed(claimed, task, args, kwargs, worker_id=worker.executor_id)
        found = limits(task, stored, worker.options)
    except Exception as error:  # somebody else's row may hold anything
        return refused(hold, UndecodableTask(f"The stored task cannot be read: {error}"), worker)
    return Loaded(task=task, args=args, kwargs=kwargs, limits=found, result=result)


def context_for(hold: Hold, loaded: Loaded) -> Context:
    return Context(
        task_result=loaded.result,
        idempotency_key=f"{hold.id}:{hold.claimed.polls}",
        is_told_to_stop=hold.is_told_to_stop,
    )


def conclude(hold: Hold, loaded: Loaded, ending: Returned | Raised, worker: Worker) -> Ended:
    """Turn how a body ended into the outcome of its poll."""
    seconds = 0.0 if hold.started_at is None else time.monotonic() - hold.started_at
    match ending:
        case Returned(value):
            try:
                text = encode_result(value, max_bytes=worker.options.max_payload_bytes)
            except InvalidResult as error:
                outcome, raised = failed(hold.claimed, error, worker), error
            else:
                outcome, raised = succeeded(hold.claimed, text, worker), None
        case Raised(error):
            outcome, raised = after_error(hold, loaded, error, worker), error
    return Ended(hold=hold, outcome=outcome, result=loaded.result, error=raised, seconds=seconds)


def after_error(hold: Hold, loaded: Loaded, error: BaseException, worker: Worker) -> Outcome:
    """Decide what an exception of the body leads to."""
    claimed, task = hold.claimed, loaded.task
    match error:
        case ShuttingDown() | FenceLost():
            # Handed back with its attempt unspent; where the claim is lost, the commit drops this.
            return replace(released(claimed), worker_id=worker.executor_id)
        case TaskCancelled():
            return ended(claimed, Status.CANCELLED, error, worker)
        case GiveUp():
            return failed(claimed, error, worker)
    is_worth_it = not isinstance(error, task.give_up_on) and (
        task.retry_on is None or isinstance(error, (*task.retry_on, Retry))
    )
    attempts = claimed.attempts + 1
    if not is_worth_it or attempts >= claimed.max_attempts:
        return failed(claimed, error, worker)
    wait = loaded.limits.backoff.seconds(attempts)
    if isinstance(error, Retry) and error.after is not None:
        wait = max(
            0.0, error.after.total_seconds() if isinstance(error.after, timedelta) else float(error.after)
        )
    return replace(ended(claimed, Status.SCHEDULED, error, worker), wake_after_seconds=wait)


def succeeded(claimed: Claimed, return_value: str, worker: Worker) -> Outcome:
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=Status.SUCCESSFUL,
        attempts=0,
        is_good_poll=True,
        worker_id=worker.executor_id,
        return_value=return_value,
    )


def failed(claimed: Claimed, error: BaseException, worker: Worker) -> Outcome:
    return ended(claimed, Status.FAILED, error, worker)


def ended(claimed: Claimed, status: Status, error: BaseException, worker: Worker) -> Outcome:
    """Make the outcome of an attempt that did not succeed."""
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=status,
        attempts=claimed.attempts + 1,
        worker_id=worker.executor_id,
        error=error_text(claimed, error, worker),
    )


def refused(hold: Hold, error: Exception, worker: Worker) -> Ended:
    """End a task FAILED whose body was never started: no attempt is counted."""
    outcome = failed(hold.claimed, error, worker)
    return Ended(
        hold=hold, outcome=replace(outcome, attempts=hold.claimed.attempts, worker_id=None), error=error
    )


def unknown(claimed: Claimed, worker: Worker) -> Outcome:
    """Hand back a task whose code this process does not have, visible as such, no attempt counted."""
    error = UnknownTask(
        f"Executor {worker.executor_name} knows no task {claimed.task_type!r}. Deploy the code that declares it in "
        "an installed app's tasks.py; until then the task is handed back every few seconds."
    )
    text = error_text(claimed, error, worker)
    is_marked = '"jobqueue.exceptions.UnknownTask"' in claimed.errors[-4000:]
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=Status.SCHEDULED,
        attempts=claimed.attempts,
        wake_after_seconds=UNKNOWN_AFTER_SECONDS * random.uniform(1.0, 1.3),
        # Once is enough: repeats would push the errors of real attempts out of the list.
        error=None if is_marked else text,
    )


def error_text(claimed: Claimed, error: BaseException, worker: Worker) -> str:
    """Write an exception as one entry of the `errors` column; works for exceptions that cannot even be printed."""
    kind = type(error)
    return json.dumps(
        {
            "attempt": claimed.attempts + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "executor": worker.executor_name,
            "exception_class_path": clean_text(f"{kind.__module__}.{kind.__qualname__}", 500),
            "message": message_of(error),
            "traceback": traceback_of(error),
        }
    )


def message_of(error: BaseException) -> str:
    try:
        return clean_text(str(error), MESSAGE_CHARACTERS)
    except Exception as failure:
        return f"<the message of this {type(error).__name__} cannot be read: {type(failure).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Format a traceback, from the body's own first frame on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OUR_FILES):
        frames = frames.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    except Exception as failure:
        return f"{type(error).__name__} <its traceback cannot be read: {type(failure).__name__}>"
    return clean_text("".join(lines), TRACEBACK_CHARACTERS)


def error_entry(outcome: Outcome) -> Mapping[str, Any] | None:
    return None if outcome.error is None else json.loads(outcome.error)
