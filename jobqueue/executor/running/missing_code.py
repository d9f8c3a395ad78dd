"""Tasks that this process cannot call: it does not know their name, or its code does not take their arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from jobqueue.declarations.actor import ActorTask
from jobqueue.declarations.function import FunctionTask
from jobqueue.exceptions import Expired, UnboundCall, UnknownTask
from jobqueue.executor.running.actor_runner import STATE, InvalidState, read_state
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, ExecutorIdentity, RunningTask
from jobqueue.executor.running.unsuccessful import failure_outcome, reject_unstarted
from jobqueue.values.arguments import read_parameters
from jobqueue.values.json import decode
from jobqueue.values.states import Status

UNKNOWN = "name"  # what an unknown task awaits; an unbound call awaits what its problem says


def problem_of_call(attempt: Attempt) -> str | None:
    """Return why the function that this process has does not take the stored arguments; None if it does."""
    task, args, kwargs = attempt.task, attempt.args, attempt.kwargs
    try:
        return read_parameters(task.func, task.takes_context).problem(args, kwargs)
    except (TypeError, ValueError):  # no signature: the call itself shows whether it fits
        return None


def problem_of_state(task: FunctionTask[..., Any], state: str | None) -> str | None:
    """Return why the code that this process has does not take a stored state; None if it does."""
    if not isinstance(task, ActorTask) or state is None:
        return None
    try:
        read_state(task.actor, state)
    except InvalidState as error:
        return str(error)
    return None


def await_known(running: RunningTask) -> CompletedAttempt:
    """Let a task wait for an executor that knows its name, or fail it if it has expired."""
    if running.claimed.is_expired:
        return reject_unstarted(running, Expired())
    task = f"task {running.claimed.task_type!r}"
    return await_code(running, unknown_task(task, running.identity.name), UNKNOWN, None)


def unknown_task(task: str, executor: str) -> UnknownTask:
    return UnknownTask(
        f"Executor {executor} knows no {task}. Deploy the code that declares it, in a module that "
        "executors import, such as an installed app's tasks.py. The task waits for an executor with such code."
    )


def await_bound(attempt: Attempt, problem: str) -> CompletedAttempt:
    """Let a task wait for an executor whose code takes its arguments, or fail it if none may be waited for."""
    running, longest = attempt.running, attempt.identity.options.unbound_call_timeout
    if longest == 0.0:
        return fail_unbound(running, problem, attempt)
    error = unbound_call(running.claimed.task_type, running.identity, problem)
    return await_code(running, error, problem, longest)


def unbound_call(task_type: str, identity: ExecutorIdentity, problem: str) -> UnboundCall:
    longest = identity.options.unbound_call_timeout
    limit = "" if longest is None else f" It fails after {timedelta(seconds=longest)} (UNBOUND_CALL_TIMEOUT)."
    return UnboundCall(
        f"The code of executor {identity.name} for {task_type} {mismatch(problem)}. The task waits for an executor "
        f"with code that does.{limit}"
    )


def mismatch(problem: str) -> str:
    """Return the middle of a sentence about code and a stored task that do not fit."""
    if problem.startswith(STATE):
        return f"does not take the stored state: {problem.removeprefix(STATE)}"
    return f"does not take the stored arguments: {problem}"


def await_code(running: RunningTask, error: Exception, awaited: str, longest: float | None) -> CompletedAttempt:
    """
    Let a task wait for code, longest seconds at most. No attempt is counted.

    awaited: what the code must have; the entry of `errors` stores it. The same entry is not repeated.
    """
    outcome = failure_outcome(running, error, Status.AWAITING_CODE, awaited=awaited, traceback="")
    last = last_wait(running.claimed.errors)
    is_known = last is not None and last.get("awaited") == awaited
    outcome = replace(
        outcome,
        attempts=running.claimed.attempts,
        unread_polls=running.claimed.unread_polls,
        stale_polls=running.claimed.stale_polls,
        worker_id=None,
        wake_after_seconds=longest,
        error=None if is_known else outcome.error,
    )
    return CompletedAttempt(running=running, outcome=outcome, error=error)


def last_wait(errors: str) -> dict[str, Any] | None:
    """Return the last entry of `errors` if it says which code the task awaits. errors: JSON text."""
    if '"awaited"' not in errors:
        return None
    try:
        entries = decode(errors)
    except ValueError:
        return None
    last = entries[-1] if isinstance(entries, list) and entries else None
    return last if isinstance(last, dict) and "awaited" in last else None


def fail_unbound(running: RunningTask, problem: str, attempt: Attempt | None = None) -> CompletedAttempt:
    """Fail a task because no executor had code that takes its arguments, or its state."""
    longest = running.identity.options.unbound_call_timeout
    waited = "" if not longest else f" The task waited {timedelta(seconds=longest)} for code that does."
    error = UnboundCall(
        f"{running.claimed.task_type} {mismatch(problem)}.{waited} Deploy code that does and requeue the task, or "
        "call it again."
    )
    return reject_unstarted(running, error, attempt)
