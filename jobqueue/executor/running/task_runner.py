"""
One attempt of a claimed task: prepare it, call its body, turn the result or the error into an outcome.

The engine knows no bodies, and bodies do not know the engine. This module knows both.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any, TypeVar
from uuid import UUID

from django.db import IntegrityError
from msgspec.structs import replace

from jobqueue.declarations import registry
from jobqueue.declarations.actor import ActorTask, PolledTask
from jobqueue.declarations.context import Context
from jobqueue.declarations.function import FunctionTask, copy_unchecked
from jobqueue.declarations.limits import limit_columns
from jobqueue.declarations.middleware import restored, restored_async
from jobqueue.declarations.options import RunOptions, read_tick, run_options
from jobqueue.engine import Engine, iso_utc
from jobqueue.exceptions import (
    ClaimLost,
    DuplicateKey,
    Expired,
    GiveUp,
    InvalidActions,
    InvalidArguments,
    InvalidResult,
    MessageAlreadyConsumed,
    Retry,
    ShuttingDown,
    Stale,
    TaskCancelled,
    TaskFinished,
    TaskNotFound,
    UnboundCall,
    UndecodableMessage,
    UndecodableTask,
    UnknownTask,
)
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.running.actor_runner import (
    STATE,
    InvalidState,
    is_commit_function,
    outcome_of_poll,
    poll_again,
    prepare_context,
    read_state,
)
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, ExecutorIdentity, Raised, Returned, RunningTask
from jobqueue.executor.running.workflow_runner import WorkflowRun
from jobqueue.executor.telemetry.errors import TRACEBACK_CHARACTERS, causes, describe_error, full_traceback, path_of
from jobqueue.executor.telemetry.logger import get_logger, mask_for
from jobqueue.values.arguments import read_parameters
from jobqueue.values.causes import fingerprint
from jobqueue.values.history import Event, format_line
from jobqueue.values.json import CHECKPOINT, as_builtins, decode, encode, encode_result, read_checkpoint
from jobqueue.values.records import ClaimedTask, Outcome, release_outcome
from jobqueue.values.states import FINAL, Status
from jobqueue.values.text import clean_text

logger = get_logger(__name__)

T = TypeVar("T")

LATEST_START_PART = 0.5  # of HEARTBEAT_TIMEOUT: a task with a rate that has not started by then is released
LATER_SECONDS = 5.0  # after which a task is READY again, if its messages or limits could not be read
MAX_STALE_POLLS = 10  # attempts in a row that read stale rows. The tenth counts as failed.
NOTHING_UNDELIVERED: Counter[UUID] = Counter()
UNKNOWN = "name"  # what an unknown task awaits; an unbound call awaits what its problem says
DUPLICATE_SPAWN = (
    "poll() returned a Spawn that was spawned before. Each Spawn is one child: "
    "create it in the poll that returns it, not once in a module."
)
QUERY_CANCELED = "57014"
LONGEST_WAIT_SECONDS = 10 * 365 * 86_400.0  # a retry much later than that could not be read back


def missing_limits(claims: Iterable[ClaimedTask]) -> list[tuple[ClaimedTask, dict[str, Any]]]:
    """
    Return the claimed tasks without limits that their code limits, with the columns of these limits.

    They were enqueued by SQL, or before their code declared the limits. If a key cannot be made, the task runs without
    limits. If the reason is that its arguments do not fit, its attempt fails.
    """
    missing = []
    for claimed in claims:
        task = registry.get(claimed.task_type)
        if task is None or (task.concurrency is None and task.rate is None) or claimed.is_limited:
            continue
        with contextlib.suppress(InvalidArguments, TypeError, ValueError, RecursionError):
            parameters = read_parameters(task.func, task.takes_context)
            columns = limit_columns(task, parameters, decode(claimed.args), decode(claimed.kwargs))
            missing.append((claimed, columns))
    return missing


def prepare(running: RunningTask, connections: TaskConnections) -> Attempt | CompletedAttempt:
    """Get a claimed task ready to run, or complete it: its row may be invalid, or its code may be missing here."""
    if running.should_stop():  # while it waited for a slot. The commit sees whether it was cancelled.
        return release_unstarted(running)
    if running.claimed.rate_key is not None and is_late(running):
        return release_unstarted(running)
    attempt = read_attempt(running, connections)
    if isinstance(attempt, CompletedAttempt):
        return attempt
    if (problem := problem_of_call(attempt)) is not None:
        return await_bound(attempt, problem)
    return prepare_polled(attempt) if isinstance(attempt.task, PolledTask) else attempt


def read_attempt(running: RunningTask, connections: TaskConnections) -> Attempt | CompletedAttempt:
    """Find the code of a claimed task and decode its row. A row that cannot be decoded fails this task only."""
    claimed, identity = running.claimed, running.identity
    declared = registry.get(claimed.task_type)
    if declared is None:
        return await_known(running)
    prepared = identity.prepared.get(claimed.task_type)
    if prepared is None or prepared[0] is not declared:
        prepared = identity.prepared[claimed.task_type] = prepare_declaration(declared, identity)
    _, task, options = prepared
    try:
        attempt = Attempt(
            running=running,
            connections=connections,
            task=task,
            args=decode(claimed.args),
            kwargs=decode(claimed.kwargs) if claimed.kwargs != "{}" else {},
            run_options=options if claimed.options == "{}" else run_options(task, claimed.options, identity.options),
        )
        if not isinstance(attempt.args, list) or not isinstance(attempt.kwargs, dict):
            raise ValueError("its arguments are not a list and an object")
        if claimed.errors != "[]" or claimed.worker_ids not in ("[]", f'["{identity.worker_id}"]'):
            attempt.result  # noqa: B018 - a history that cannot be read is to be found here
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the row may hold anything
        return reject_unstarted(running, UndecodableTask(f"The stored task cannot be read: {error}"))
    return reject_unstarted(running, Expired(), attempt) if claimed.is_expired else attempt


def prepare_declaration(
    declared: FunctionTask[..., Any], identity: ExecutorIdentity
) -> tuple[FunctionTask[..., Any], FunctionTask[..., Any], RunOptions]:
    """Return the task and the options that each run of a declaration has; see ExecutorIdentity.prepared."""
    task, engine = declared, identity.engine
    if task.backend != engine.alias:  # enqueued by using(backend=...)
        task = copy_unchecked(task, backend=engine.alias)
    if task.process and identity.in_process is not None:
        task = copy_unchecked(task, func=identity.in_process(task))
    return declared, task, run_options(task, "{}", engine.options)


def is_atomic(running: RunningTask) -> bool:
    task = registry.get(running.claimed.task_type)
    return task is not None and task.atomic


def is_late(running: RunningTask) -> bool:
    """
    Return whether another executor may have rescued the task, because this process was frozen after its claim.

    The rescue has counted a start at its own time. A body that began later would be one too many.
    """
    return time.monotonic() - running.claimed_at > running.identity.options.heartbeat_timeout * LATEST_START_PART


def prepare_polled(attempt: Attempt) -> Attempt | CompletedAttempt:
    """Decode state and inbox. An invalid message fails the attempt. A state that this code does not take waits."""
    attempt.running.finishes_when_cancelled = True
    try:
        is_actor = isinstance(attempt.task, ActorTask)
        attempt.context = prepare_context(attempt) if is_actor else WorkflowRun(attempt)
    except UndecodableMessage as error:
        return complete(attempt, Raised(error))
    except InvalidState as error:
        return await_bound(attempt, str(error))
    return attempt


def call(attempt: Attempt) -> Any:
    """Call the body: its result, or the coroutine of an async one."""
    task, running = attempt.task, attempt.running
    if running.claimed.rate_key is not None:
        running.begun_at = time.monotonic()
    if isinstance(task, PolledTask):
        if not isinstance(task, ActorTask):
            return attempt.context.poll()
        returned = task.actor().poll(attempt.context, *attempt.args, **attempt.kwargs)
        return list(returned) if isinstance(returned, Generator) else returned
    if not task.takes_context:
        return task.func(*attempt.args, **attempt.kwargs)
    key = f"{running.id}:{running.claimed.polls}"
    tick = read_tick(running.claimed.options)
    context = Context(
        task_result=attempt.result,
        idempotency_key=key,
        should_stop=running.is_cancelled,
        schedule=tick.schedule,
        scheduled_at=tick.scheduled_at,
        report=running.report,
        retries=running.claimed.attempts,
        stored_metadata=running.claimed.metadata,
        keep=partial(keep_checkpoint, attempt),
        last_checkpoint=None if running.claimed.inner_state is None else read_checkpoint(running.claimed.inner_state),
    )
    return task.func(context, *attempt.args, **attempt.kwargs)


def keep_checkpoint(attempt: Attempt, value: Any) -> None:
    """Store a checkpoint of a function. Raises RuntimeError in an atomic task, whose transaction it would be in."""
    if attempt.task.atomic:
        raise RuntimeError("checkpoint() needs a task without atomic=True: its transaction commits at its end only.")
    identity = attempt.identity
    text = encode(as_builtins(value), where="checkpoint", max_bytes=identity.options.max_payload_bytes)
    identity.engine.checkpoints.store(attempt.claimed, identity.executor_id, f'{{"{CHECKPOINT}":{text}}}')


def poll(attempt: Attempt) -> Outcome | Callable[[], Any]:
    """Call a synchronous body and finish what it returned."""
    if attempt.running.claimed.metadata == "{}":
        return finish(attempt, call(attempt))
    return in_context(attempt, lambda: finish(attempt, call(attempt)))


def in_context(attempt: Attempt, function: Callable[[], T]) -> T:
    """Call a synchronous part of the body with the values of MIDDLEWARE that travelled with the task."""
    if attempt.running.claimed.metadata == "{}":
        return function()
    with restored(attempt.running.claimed.metadata, attempt.identity.options.middleware):
        return function()


async def call_in_context(attempt: Attempt) -> Any:
    """Await an async body with these values."""
    async with restored_async(attempt.running.claimed.metadata, attempt.identity.options.middleware):
        return await call(attempt)


def finish(attempt: Attempt, value: Any) -> Outcome | Callable[[], Any]:
    """
    Turn what a body returned into its outcome. Return a function for the committing transaction unchanged.

    Serializing a result or a state may run the user's code for any length of time. So this is part of the body: it can
    be interrupted, and the body's timeout applies.
    """
    if attempt.context is not None and is_commit_function(value):
        function: Callable[[], Any] = value
        return function
    return success_outcome(attempt, value)


def success_outcome(attempt: Attempt, value: Any) -> Outcome:
    """Turn what a body returned into an outcome: a function's result, an actor's actions."""
    if attempt.context is not None:
        return value if isinstance(value, Outcome) else outcome_of_poll(attempt, value)
    running = attempt.running
    claimed, identity = running.claimed, running.identity
    try:
        if isinstance(value, CoroutineType):
            value.close()
            raise InvalidResult("The function returned a coroutine. Declare the task with `async def`.")
        return_value = encode_result(value, max_bytes=identity.engine.options.max_payload_bytes)
    except InvalidResult as refusal:
        raise refusal.with_traceback(None)  # noqa: B904 - its frames and its context are ours
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=Status.SUCCESSFUL,
        attempts=claimed.attempts,
        has_succeeded=True,
        worker_id=identity.worker_id,
        return_value=return_value,
        may_unblock_others=claimed.may_unblock_others,
    )


def complete(attempt: Attempt, ending: Returned | Raised) -> CompletedAttempt:
    """Turn the finished end of a body into the outcome of its poll."""
    running, error = attempt.running, None
    seconds = 0.0 if running.started_at is None else time.monotonic() - running.started_at
    match ending:
        case Returned(_) if running.has_seen_stop and attempt.context is None:
            outcome: Outcome = release_started(running)  # it has done a part; an actor's poll has returned what is next
        case Returned(value):
            outcome = value
        case Raised(raised):
            error = original_error(running, raised)
            try:
                outcome = outcome_of_error(attempt, error)
            except MemoryError:
                raise
            except BaseException as mistake:  # noqa: BLE001 - in a class of the body's, which would fail each time
                error = mistake
                outcome = failure_outcome(running, error)
    history = format_history(running, outcome, seconds)
    outcome = replace(outcome, run_seconds=seconds, history=history, begun_seconds=running.begun_seconds)
    return CompletedAttempt(running=running, outcome=outcome, attempt=attempt, error=error, seconds=seconds)


def format_history(running: RunningTask, outcome: Outcome, seconds: float) -> str | None:
    """Return the line of an attempt for the history; None if it has ended the task or failed: other columns have it."""
    if outcome.status in FINAL or outcome.error is not None:
        return None
    effects = outcome.effects
    if outcome.has_succeeded:
        event = Event.SUSPENDED if outcome.status is Status.SUSPENDED else Event.POLLED
    else:
        event = Event.STALE if outcome.status is Status.SCHEDULED else Event.RELEASED
    return format_line(
        event,
        running.now(),
        running.claimed.wait_seconds,
        seconds,
        running.identity.name,
        consumed=len(effects.consumed),
        spawned=len(effects.spawn),
        sent=len(effects.send),
        claim_number=running.claimed.claim_number,
    )


def original_error(running: RunningTask, error: BaseException) -> BaseException:
    """Return the interruption if the body only saw that the executor cancelled its statement."""
    if running.reason is None or all(getattr(cause, "sqlstate", None) != QUERY_CANCELED for cause in causes(error)):
        return error
    reason = running.reason().with_traceback(error.__traceback__)
    reason.__cause__ = error
    return reason


def outcome_of_error(attempt: Attempt, error: BaseException) -> Outcome:
    """
    Return the outcome of a body that raised.

    A body that was interrupted may raise any exception while it ends.
    """
    running, claimed, task = attempt.running, attempt.claimed, attempt.task
    if running.has_seen_stop or running.reason in (ShuttingDown, ClaimLost):
        return release_started(running)
    if isinstance(attempt.context, WorkflowRun) and (ending := attempt.context.ending_of(error)) is not None:
        return replace(failure_outcome(running, error, ending[0]), **ending[1])
    if isinstance(error, (GiveUp, InvalidResult)):
        return last_failure(attempt, error)
    # A workflow is CANCELLED by the commit, or by its next run, which runs its compensations.
    if running.reason is TaskCancelled and not isinstance(attempt.context, WorkflowRun):
        return failure_outcome(running, error, Status.CANCELLED)
    if isinstance(error, Stale) and (again := retry_stale(running)):
        return again
    if (again := retry_unconnected(attempt, error)) is not None:
        return again
    is_worth_it = not isinstance(error, task.give_up_on) and (
        task.retry_on is None or isinstance(error, (*task.retry_on, Retry))
    )
    attempts = claimed.attempts + 1
    max_attempts = (error.max_attempts if isinstance(error, Retry) else None) or attempt.run_options.max_attempts
    if not is_worth_it or attempts >= max_attempts:
        return last_failure(attempt, error)
    wait = attempt.run_options.backoff.seconds(attempts)
    if isinstance(error, Retry) and error.after is not None:
        wait = error.after
    retry = failure_outcome(running, error, Status.SCHEDULED)
    return replace(retry, wake_after_seconds=min(wait, LONGEST_WAIT_SECONDS))


def last_failure(attempt: Attempt, error: BaseException) -> Outcome:
    failure = failure_outcome(attempt.running, error)
    is_workflow = isinstance(attempt.context, WorkflowRun)
    return replace(failure, effects=attempt.context.ends_of_blocks()) if is_workflow else failure


def retry_stale(running: RunningTask) -> Outcome | None:
    """Run it again soon without counting an attempt. Return None after MAX_STALE_POLLS in a row."""
    return poll_again(running) if running.claimed.stale_polls + 1 < MAX_STALE_POLLS else None


def retry_unconnected(attempt: Attempt, error: BaseException) -> Outcome | None:
    """
    Run a body again soon without counting an attempt, if it got no connection: the body has not failed.

    The executor itself reaches its own database, so there this may last. Another database may be configured wrongly:
    return None after MAX_STALE_POLLS in a row.
    """
    database = attempt.connections.refused(causes(error))
    if database is None:
        return None
    is_own = database == attempt.identity.engine.database
    return poll_again(attempt.running) if is_own else retry_stale(attempt.running)


def failure_outcome(running: RunningTask, error: BaseException, status: Status = Status.FAILED, **more: str) -> Outcome:
    """Return the outcome of an attempt that did not succeed, with its entry of the `errors` column. more: for this."""
    claimed = running.claimed
    mask = mask_for(claimed, running.identity.options)  # a fingerprint of a secret could be compared with guesses
    entry: dict[str, Any] = {
        "attempt": claimed.attempts + 1,
        "claim_number": claimed.claim_number,
        "at": iso_utc(running.now()),
        "executor": running.identity.name,
        "exception_class_path": path_of(error),
        "message": describe_error(error),
        "traceback": clean_text(full_traceback(error), TRACEBACK_CHARACTERS),
        "wait_seconds": round(claimed.wait_seconds, 3),
        "run_seconds": None if running.started_at is None else round(time.monotonic() - running.started_at, 3),
        **more,
    }
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=status,
        attempts=claimed.attempts + 1,
        worker_id=running.identity.worker_id,
        error=json.dumps(entry),
        cause=fingerprint(claimed.task_type, entry["exception_class_path"], describe_error(error, mask)),
        may_unblock_others=claimed.may_unblock_others,
    )


def release_started(running: RunningTask) -> Outcome:
    """Release a task without a used attempt. If its claim is lost, the commit drops this outcome."""
    return replace(release_outcome(running.claimed), worker_id=running.identity.worker_id)


def release_unstarted(running: RunningTask) -> CompletedAttempt:
    """Release a task unchanged."""
    return CompletedAttempt(running=running, outcome=release_outcome(running.claimed))


def release_for_later(running: RunningTask) -> CompletedAttempt:
    """Release a task that this process cannot begin now, for some seconds. No attempt is counted."""
    wait = LATER_SECONDS * random.uniform(1.0, 1.3)
    outcome = replace(release_outcome(running.claimed), status=Status.SCHEDULED, wake_after_seconds=wait)
    return CompletedAttempt(running=running, outcome=outcome)


def reject_unstarted(running: RunningTask, error: Exception, attempt: Attempt | None = None) -> CompletedAttempt:
    """Fail a task before its body started. No attempt is counted."""
    outcome = replace(failure_outcome(running, error), attempts=running.claimed.attempts, worker_id=None)
    return CompletedAttempt(running=running, outcome=outcome, attempt=attempt, error=error)


def reject_by_database(completed: CompletedAttempt, error: Exception) -> CompletedAttempt:
    """Fail a task, because the database refused its outcome. Refused messages only fail the attempt."""
    if is_duplicate_spawn(error):
        error = InvalidActions(DUPLICATE_SPAWN)
    if completed.attempt is not None and isinstance(
        error, (TaskFinished, TaskNotFound, MessageAlreadyConsumed, DuplicateKey, InvalidActions)
    ):
        return complete(completed.attempt, Raised(error))
    running = completed.running
    refusal = InvalidResult(f"The database refused the outcome: {describe_error(error)}")
    refused = completed.outcome
    outcome = replace(
        failure_outcome(running, refusal), run_seconds=refused.run_seconds, begun_seconds=refused.begun_seconds
    )
    if isinstance(completed.error, InvalidResult):  # the error of the refusal was refused, too: store none
        outcome = replace(outcome, error=None, worker_id=None, attempts=running.claimed.attempts)
    return replace(completed, outcome=outcome, error=refusal, success_in_doubt=None)


def is_duplicate_spawn(error: Exception) -> bool:
    """Return whether a child's id exists already. Both databases name the unique column."""
    return isinstance(error, IntegrityError) and any(
        name in str(error) for name in ("jobqueue_task_pkey", "jobqueue_task.id")
    )


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
        f"executors import, such as {registry.DISCOVERED_FILES} of an installed app. The task waits for an executor "
        "with such code."
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


def end_code_wait(running: RunningTask) -> CompletedAttempt:
    """End the wait of a task for code: it fails, unless this executor has the code after all."""
    attempt = read_attempt(running, TaskConnections())
    if isinstance(attempt, Attempt):
        problem = problem_of_call(attempt) or problem_of_state(attempt.task, running.claimed.inner_state)
        return release_unstarted(running) if problem is None else fail_unbound(running, problem, attempt)
    last = last_wait(running.claimed.errors)
    if attempt.outcome.status is not Status.AWAITING_CODE or last is None or last["awaited"] == UNKNOWN:
        return attempt
    return fail_unbound(running, str(last["awaited"]))


def fail_unbound(running: RunningTask, problem: str, attempt: Attempt | None = None) -> CompletedAttempt:
    """Fail a task because no executor had code that takes its arguments, or its state."""
    longest = running.identity.options.unbound_call_timeout
    waited = "" if not longest else f" The task waited {timedelta(seconds=longest)} for code that does."
    error = UnboundCall(
        f"{running.claimed.task_type} {mismatch(problem)}.{waited} Deploy code that does and requeue the task, or "
        "call it again."
    )
    return reject_unstarted(running, error, attempt)


def count_undelivered(
    engine: Engine, done: Iterable[tuple[CompletedAttempt, Status]], dropped: Mapping[UUID, int]
) -> Counter[UUID]:
    """
    Count the messages that no task will read: left by an actor that has ended, or sent to a parent that had ended.

    Counts after the commit. It misses messages that commit later. The admin shows these, too.
    """
    ended = [completed.attempt for completed, status in done if status in FINAL]
    actors = [attempt.running.id for attempt in ended if attempt is not None and attempt.context is not None]
    if not actors and not dropped:
        return NOTHING_UNDELIVERED
    unread = engine.inbox.count_unread(actors) if actors else {}
    for pk, count in unread.items():
        logger.info("message.undelivered id=%s count=%d", pk, count)
    return Counter(dropped) + Counter(unread)
