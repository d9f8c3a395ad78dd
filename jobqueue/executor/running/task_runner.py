"""
One attempt of a claimed task: prepare it, call its body, turn the result or the error into an outcome.

The engine knows no bodies, and bodies do not know the engine. This module knows both.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from msgspec import Struct
from msgspec.structs import replace

from jobqueue import registry
from jobqueue.actor import Actor, ActorTask, PollContext
from jobqueue.api.messages import receivers
from jobqueue.conf import Options
from jobqueue.context import Context
from jobqueue.engine import engine_for
from jobqueue.exceptions import (
    ClaimLost,
    DuplicateKey,
    Expired,
    GiveUp,
    InvalidActions,
    InvalidResult,
    MessageAlreadyConsumed,
    Retry,
    ShuttingDown,
    Stale,
    TaskCancelled,
    TaskFinished,
    TaskNotFound,
    UndecodableMessage,
    UndecodableTask,
    UnknownTask,
)
from jobqueue.executor.running.actor_runner import context_of, is_commit_function, outcome_of, poll_again
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.telemetry.errors import error_text, message_of
from jobqueue.function import FunctionTask, changed
from jobqueue.records import ClaimedTask, Outcome, Status, release_outcome
from jobqueue.results import Result, from_claimed
from jobqueue.serialization.json import decode, encode_result
from jobqueue.task_options import Limits, limits

UNKNOWN_TASK_SECONDS = 15.0  # after which a task without code here is READY again, for an executor that has it
MAX_STALE_POLLS = 10  # attempts in a row that read stale rows. The tenth counts as failed.
DUPLICATE_SPAWN = (
    "A Spawn that poll() returned was spawned before. Each is one child, whose id it has from the start: "
    "build it in the poll that returns it, not once in a module."
)
QUERY_CANCELED = "57014"
LONGEST_WAIT_SECONDS = 10 * 365 * 86_400.0  # a retry much later than that could not be read back


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorIdentity:
    """The executor that runs the task: its id and name, its backend and the backend's OPTIONS."""

    executor_id: str
    executor_name: str
    options: Options
    backend: str = "default"


class PreparedTask(Struct, kw_only=True, eq=False):
    """A claimed task, ready to run. context: an actor's state and inbox."""

    claimed: ClaimedTask
    task: FunctionTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    limits: Limits
    worker_id: str
    context: PollContext[Any] | None = None
    _result: Result | None = None

    @property
    def result(self) -> Result:
        """The task as django.tasks shows it. It takes 7 us to build, so it is built on first use."""
        if self._result is None:
            self._result = from_claimed(self.claimed, self.task, self.args, self.kwargs, worker_id=self.worker_id)
        return self._result


OnStart = Callable[[RunningTask, PreparedTask], None]


class Returned(Struct, frozen=True):
    """The body has returned. value: what it returned; after finish(), an Outcome or a function for the commit."""

    value: Any


class Raised(Struct, frozen=True):
    """The body raised."""

    error: BaseException


class CompletedAttempt(Struct, frozen=True, kw_only=True, eq=False):
    """
    One attempt that has ended, and its outcome.

    is_committed: the outcome is in the database already (an atomic body). `wake` are the receivers that its commit left
    to be woken. if_lost: the attempt that counts if this outcome is lost, because an earlier COMMIT succeeded and its
    answer was lost. undelivered: how many messages will never be read: those in the inbox of an actor that has ended,
    and those to a parent that had ended.
    """

    hold: RunningTask
    outcome: Outcome
    loaded: PreparedTask | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    is_committed: bool = False
    wake: frozenset[UUID] = frozenset()
    undelivered: int = 0
    if_lost: CompletedAttempt | None = None


def prepare(hold: RunningTask, worker: ExecutorIdentity) -> PreparedTask | CompletedAttempt:
    """Find the code of a claimed task and decode its row. A row that cannot be decoded fails this task only."""
    claimed = hold.claimed
    if hold.should_stop():  # while it waited for a slot. The commit sees whether it was cancelled.
        return release_unstarted(hold)
    task = registry.get(claimed.task_type)
    if task is None:
        return release_unknown(hold, worker)
    if task.backend != worker.backend:  # enqueued by using(backend=...)
        task = changed(task, backend=worker.backend)
    try:
        loaded = PreparedTask(
            claimed=claimed,
            task=task,
            args=decode(claimed.args),
            kwargs=decode(claimed.kwargs) if claimed.kwargs != "{}" else {},
            limits=limits(task, decode(claimed.options) if claimed.options != "{}" else {}, worker.options),
            worker_id=worker.executor_id,
        )
        if not isinstance(loaded.args, list) or not isinstance(loaded.kwargs, dict):
            raise ValueError("its arguments are not a list and an object")
        if claimed.errors != "[]" or claimed.worker_ids not in ("[]", f'["{worker.executor_id}"]'):
            loaded.result  # noqa: B018 - a history that cannot be read is to be found here
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the row may hold anything
        return reject_unstarted(hold, UndecodableTask(f"The stored task cannot be read: {error}"), worker)
    if claimed.is_expired:
        return reject_unstarted(hold, Expired(), worker, loaded)
    return prepare_actor(hold, loaded, task.actor, worker) if isinstance(task, ActorTask) else loaded


def prepare_actor(
    hold: RunningTask, loaded: PreparedTask, actor: type[Actor[Any]], worker: ExecutorIdentity
) -> PreparedTask | CompletedAttempt:
    """Decode state and inbox. An invalid message fails the attempt, an invalid state fails the task."""
    hold.finishes_when_cancelled = True
    try:
        context = context_of(actor, hold.claimed, hold.messages, lambda: loaded.result, hold.should_stop)
    except UndecodableMessage as error:
        return to_outcome(hold, loaded, Raised(error), worker)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - State may be any class, with any code
        return reject_unstarted(hold, UndecodableTask(f"The stored state cannot be read: {error}"), worker, loaded)
    loaded.context = context
    return loaded


def call(hold: RunningTask, loaded: PreparedTask) -> Any:
    """Call the body: its result, or the coroutine of an async one."""
    if isinstance(loaded.task, ActorTask):
        returned = loaded.task.actor().poll(loaded.context, *loaded.args, **loaded.kwargs)  # type: ignore[arg-type]
        return list(returned) if isinstance(returned, Generator) else returned
    if not loaded.task.takes_context:
        return loaded.task.func(*loaded.args, **loaded.kwargs)
    key = f"{hold.id}:{hold.claimed.polls}"
    context = Context(task_result=loaded.result, idempotency_key=key, should_stop=hold.should_stop)
    return loaded.task.func(context, *loaded.args, **loaded.kwargs)


def poll(hold: RunningTask, loaded: PreparedTask, worker: ExecutorIdentity) -> Outcome | Callable[[], Any]:
    """Call a synchronous body and finish what it returned."""
    return finish(hold, loaded, call(hold, loaded), worker)


def finish(
    hold: RunningTask, loaded: PreparedTask, value: Any, worker: ExecutorIdentity
) -> Outcome | Callable[[], Any]:
    """
    Turn what a body returned into its outcome. Return a function for the committing transaction unchanged.

    Serializing a result or a state may run the user's code for any length of time. So this is part of the body: it can
    be interrupted, and the body's timeout applies.
    """
    if loaded.context is not None and is_commit_function(value):
        function: Callable[[], Any] = value
        return function
    return success_outcome(hold, loaded, value, worker)


def to_outcome(
    hold: RunningTask, loaded: PreparedTask, ending: Returned | Raised, worker: ExecutorIdentity
) -> CompletedAttempt:
    """Turn the finished end of a body into the outcome of its poll."""
    error: BaseException | None = None
    seconds = 0.0 if hold.started_at is None else time.monotonic() - hold.started_at
    match ending:
        case Returned(value):
            outcome: Outcome = value
        case Raised(raised):
            error = original_error(hold, raised)
            try:
                outcome = outcome_of_error(hold, loaded, error, worker)
            except MemoryError:
                raise
            except BaseException as mistake:  # noqa: BLE001 - in a class of the body's, which would fail each time
                error = mistake
                outcome = failure_outcome(hold, error, worker)
    outcome = replace(outcome, run_seconds=seconds)
    return CompletedAttempt(hold=hold, outcome=outcome, loaded=loaded, error=error, seconds=seconds)


def success_outcome(hold: RunningTask, loaded: PreparedTask, value: Any, worker: ExecutorIdentity) -> Outcome:
    """Turn what a body returned into an outcome: a function's result, an actor's actions."""
    if loaded.context is None or not isinstance(loaded.task, ActorTask):
        try:
            return function_outcome(hold.claimed, encode_value(value, worker), worker)
        except InvalidResult as refusal:
            raise refusal.with_traceback(None)  # noqa: B904 - its frames and its context are ours
    names = partial(receivers, engine_for(worker.backend))
    actor = loaded.task.actor
    return outcome_of(hold.claimed, loaded.context, actor, value, names, worker.backend, worker.executor_id)


def encode_value(value: Any, worker: ExecutorIdentity) -> str:
    if inspect.iscoroutine(value):
        value.close()
        raise InvalidResult("The function returned a coroutine, which nobody awaits: declare the task `async def`.")
    return encode_result(value, max_bytes=worker.options.max_payload_bytes)


def original_error(hold: RunningTask, error: BaseException) -> BaseException:
    """Return the interruption if the body only saw that the executor cancelled its statement."""
    if hold.reason is None or all(getattr(cause, "sqlstate", None) != QUERY_CANCELED for cause in causes(error)):
        return error
    reason = hold.reason().with_traceback(error.__traceback__)
    reason.__cause__ = error
    return reason


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, which may form a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def outcome_of_error(
    hold: RunningTask, loaded: PreparedTask, error: BaseException, worker: ExecutorIdentity
) -> Outcome:
    """
    Return the outcome of a body that raised.

    A body that was interrupted may raise any exception while it ends.
    """
    claimed, task = hold.claimed, loaded.task
    if hold.reason in (ShuttingDown, ClaimLost):
        # Released without a used attempt. If the claim is lost, the commit drops this outcome.
        return replace(release_outcome(claimed), worker_id=worker.executor_id)
    if isinstance(error, (GiveUp, InvalidResult)):
        return failure_outcome(hold, error, worker)
    if hold.reason is TaskCancelled:
        return attempt_outcome(hold, Status.CANCELLED, error, worker)
    if isinstance(error, Stale) and (again := retry_stale(claimed, worker)):
        return again
    is_worth_it = not isinstance(error, task.give_up_on) and (
        task.retry_on is None or isinstance(error, (*task.retry_on, Retry))
    )
    attempts = claimed.attempts + 1
    if not is_worth_it or attempts >= loaded.limits.max_attempts:
        return failure_outcome(hold, error, worker)
    wait = loaded.limits.backoff.seconds(attempts)
    if isinstance(error, Retry) and error.after is not None:
        wait = error.after
    retry = attempt_outcome(hold, Status.SCHEDULED, error, worker)
    return replace(retry, wake_after_seconds=min(wait, LONGEST_WAIT_SECONDS))


def retry_stale(claimed: ClaimedTask, worker: ExecutorIdentity) -> Outcome | None:
    """Run it again soon without counting an attempt. Return None after MAX_STALE_POLLS in a row."""
    return poll_again(claimed, worker.options.poll_interval) if claimed.stale_polls + 1 < MAX_STALE_POLLS else None


def function_outcome(claimed: ClaimedTask, return_value: str, worker: ExecutorIdentity) -> Outcome:
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=Status.SUCCESSFUL,
        attempts=0,
        has_succeeded=True,
        worker_id=worker.executor_id,
        return_value=return_value,
    )


def failure_outcome(hold: RunningTask, error: BaseException, worker: ExecutorIdentity) -> Outcome:
    return attempt_outcome(hold, Status.FAILED, error, worker)


def attempt_outcome(hold: RunningTask, status: Status, error: BaseException, worker: ExecutorIdentity) -> Outcome:
    """Make the outcome of an attempt that did not succeed."""
    claimed = hold.claimed
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=status,
        attempts=claimed.attempts + 1,
        worker_id=worker.executor_id,
        error=error_text(hold, error, worker.executor_name),
    )


def release_unstarted(hold: RunningTask) -> CompletedAttempt:
    """Release a task unchanged."""
    return CompletedAttempt(hold=hold, outcome=release_outcome(hold.claimed))


def reject_unstarted(
    hold: RunningTask, error: Exception, worker: ExecutorIdentity, loaded: PreparedTask | None = None
) -> CompletedAttempt:
    """Fail a task before its body started. No attempt is counted."""
    outcome = replace(failure_outcome(hold, error, worker), attempts=hold.claimed.attempts, worker_id=None)
    return CompletedAttempt(hold=hold, outcome=outcome, loaded=loaded, error=error)


def reject_by_database(attempt: CompletedAttempt, error: Exception, worker: ExecutorIdentity) -> CompletedAttempt:
    """Fail a task, because the database refused its outcome. Refused messages only fail the attempt."""
    if is_duplicate_spawn(error):
        error = InvalidActions(DUPLICATE_SPAWN)
    if attempt.loaded is not None and isinstance(
        error, (TaskFinished, TaskNotFound, MessageAlreadyConsumed, DuplicateKey, InvalidActions)
    ):
        return to_outcome(attempt.hold, attempt.loaded, Raised(error), worker)
    refusal = InvalidResult(f"The database refused the outcome: {message_of(error)}")
    outcome = replace(failure_outcome(attempt.hold, refusal, worker), run_seconds=attempt.outcome.run_seconds)
    if isinstance(attempt.error, InvalidResult):  # the error of the refusal was refused, too: store none
        outcome = replace(outcome, error=None, worker_id=None, attempts=attempt.hold.claimed.attempts)
    return replace(attempt, outcome=outcome, error=refusal, if_lost=None)


def is_duplicate_spawn(error: Exception) -> bool:
    """Return whether a child's id exists already. Both databases name the unique column."""
    return isinstance(error, IntegrityError) and any(
        name in str(error) for name in ("jobqueue_task_pkey", "jobqueue_task.id")
    )


def release_unknown(hold: RunningTask, worker: ExecutorIdentity) -> CompletedAttempt:
    """Release a task that this process has no code for. Its row shows an error, and no attempt is counted."""
    claimed = hold.claimed
    error = UnknownTask(
        f"Executor {worker.executor_name} knows no task {claimed.task_type!r}. Deploy the code that declares it in "
        "an installed app's tasks.py; until then the task is released every few seconds."
    )
    # One error is enough: more would push the errors of real attempts out of the list.
    is_marked = '"jobqueue.exceptions.UnknownTask"' in claimed.errors
    wait = UNKNOWN_TASK_SECONDS * random.uniform(1.0, 1.3)
    outcome = attempt_outcome(hold, Status.SCHEDULED, error, worker)
    outcome = replace(outcome, attempts=claimed.attempts, worker_id=None, wake_after_seconds=wait)
    if is_marked:
        outcome = replace(outcome, error=None)
    return CompletedAttempt(hold=hold, outcome=outcome, error=error)
