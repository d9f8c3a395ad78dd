"""
The end of an attempt in a thread, and a body with its outcome in one transaction, on the body's own connection.

So run `@task(atomic=True)`, and the function that a poll of an actor may return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import django.db
from django.db import transaction
from django.db.transaction import TransactionManagementError
from msgspec.structs import replace

from jobqueue.engine import Engine, sqlstate_of
from jobqueue.exceptions import ClaimLost, GiveUp, Stale
from jobqueue.executor.running.actor_runner import poll_again
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, Raised, Returned, run_interruptibly
from jobqueue.executor.running.task_runner import (
    call,
    complete,
    count_undelivered,
    in_context,
    reject_by_database,
    retry_stale,
    success_outcome,
)
from jobqueue.executor.telemetry.errors import causes, describe_error, format_first_line, from_the_body
from jobqueue.executor.telemetry.logger import get_logger, mask_for
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import Outcome, release_outcome
from jobqueue.values.text import printable

logger = get_logger(__name__)

IMPATIENT = ("57014", "55P03")  # statement_timeout or pg_cancel_backend(); lock_timeout
# How Django refuses durable=True, and commit(), rollback() and set_autocommit(); the server's code for the same.
FORBIDDEN = ("A durable atomic block cannot be nested", "This is forbidden when an 'atomic' block is active")
IN_TRANSACTION = "25001"
CONFLICTS = ("40001", "40P01")  # serialization failure, deadlock
# Classes of SQLSTATE: no disk, memory or connections left on the server; the connection is lost.
EXHAUSTED, CONNECTION_STATES = ("53", "58"), ("08", "57P")


class _RolledBack(Exception):
    """Rolls the transaction back."""

    def __init__(self, completed: CompletedAttempt) -> None:
        self.completed = completed


def end_attempt(attempt: Attempt, ending: Returned | Raised) -> CompletedAttempt:
    """
    Turn the finished end of a body into the outcome of its poll. Run the function that a poll returned.

    A body that left a transaction open has failed, because what it wrote there is rolled back.
    """
    if isinstance(ending, Returned):
        try:
            attempt.connections.check()
        except TransactionManagementError as error:
            ending = Raised(error.with_traceback(None))
    match ending:
        case Returned(value) if not isinstance(value, Outcome):
            return commit_with(attempt, value)
    return complete(attempt, ending)


def poll_atomically(attempt: Attempt, *, durable: bool = True) -> CompletedAttempt:
    """
    Run the body and commit its outcome in one transaction, at the site's level of isolation.

    durable: False for a test, which may have opened one around it.
    """

    def body() -> Outcome:
        return success_outcome(attempt, call(attempt))

    return _run_and_commit(attempt, body, transaction.atomic(using=attempt.identity.engine.database, durable=durable))


def commit_with(attempt: Attempt, function: Callable[[], Any]) -> CompletedAttempt:
    """
    Run the function that a poll returned in the committing transaction, with the task's row locked.

    READ COMMITTED, as every transaction that reads the inbox after the lock.
    """
    engine = attempt.identity.engine

    def body() -> Outcome:
        with stale_if_impatient():
            is_held = engine.claims.lock_claim(attempt.claimed, attempt.identity.executor_id)
        if not is_held:
            raise ClaimLost
        return success_outcome(attempt, function())

    return _run_and_commit(attempt, body, engine.db.transaction())


def _run_and_commit(
    attempt: Attempt, body: Callable[[], Outcome], opened: AbstractContextManager[None]
) -> CompletedAttempt:
    """Commit a success with the effects of its body. Return any other outcome for the loop to commit."""
    completed: CompletedAttempt | None = None
    has_begun = False
    try:
        with opened:
            has_begun = True
            completed = _completed(attempt, run_interruptibly(attempt, partial(in_context, attempt, body)))
            completed = _commit(completed, attempt)
            failpoint("atomic.before")
        failpoint("atomic.after")
    except _RolledBack as undone:
        return undone.completed
    except BaseException as error:  # noqa: BLE001 - a body's on_commit hook may raise anything
        failure = _completed(attempt, Raised(from_the_body(error)))
        is_unwritten = completed is not None and completed.outcome.has_succeeded and not completed.is_committed
        is_refused = not has_begun and isinstance(error, (django.db.OperationalError, django.db.InterfaceError))
        is_the_servers = is_exhausted(error) if is_unwritten else is_refused
        if is_the_servers and attempt.running.reason is None:
            # No attempt is counted, however often: the server may have room again at the next claim.
            return replace(failure, outcome=poll_again(attempt.running))
        if completed is None or is_unwritten:
            return failure
        # A body that failed keeps its own error, not the error of the rollback.
        return _in_doubt(completed, failure) if completed.is_committed else completed
    return completed


def _completed(attempt: Attempt, ending: Returned | Raised) -> CompletedAttempt:
    """
    Complete the attempt. After a conflict with another transaction the task runs again, and no attempt is counted.

    What no transaction allows fails at once: it would fail again in each attempt.
    """
    if isinstance(ending, Raised) and (problem := forbidden_in_transaction(attempt, ending.error)):
        ending = Raised(problem)
    completed = complete(attempt, ending)
    has_conflict = any(getattr(cause, "sqlstate", None) in CONFLICTS for cause in causes(completed.error))
    if has_conflict and attempt.running.reason is None and (outcome := retry_stale(attempt.running)) is not None:
        return replace(completed, outcome=outcome)
    return completed


def _commit(completed: CompletedAttempt, attempt: Attempt) -> CompletedAttempt:
    """Write the outcome of a body that succeeded. Raises _RolledBack."""
    if not completed.outcome.has_succeeded:
        raise _RolledBack(completed)
    engine, pk = attempt.identity.engine, attempt.running.id
    attempt.connections.check(atomic=engine.database)
    with stale_if_impatient(), failed_by_settings(engine):
        result = engine.commits.commit([completed.outcome], holder=attempt.identity.executor_id, wait=True)
    if pk in result.refused:
        raise _RolledBack(reject_by_database(completed, result.refused[pk]))
    if pk in result.unknown:
        # Another transaction has locked the row of a receiver. Waiting here, with locks held, could cause a deadlock.
        raise _RolledBack(replace(completed, outcome=poll_again(attempt.running)))
    if pk not in result.done:
        # The loop commits the same outcome again, learns that the claim is lost, and logs it.
        raise _RolledBack(completed)
    undelivered = count_undelivered(engine, [(completed, result.done[pk])], result.dropped)[pk]
    return replace(completed, is_committed=True, wake=result.wake, undelivered=undelivered)


@contextmanager
def failed_by_settings(engine: Engine) -> Iterator[None]:
    """Raise TransactionManagementError if the outcome cannot be stored with the settings that the body has made."""
    try:
        yield
    except django.db.DatabaseError as error:
        if names := engine.db.settings_in_the_way(sqlstate_of(error)):
            raise TransactionManagementError(
                f"The body has changed {' and '.join(names)} in the transaction in which its outcome is stored, "
                f"and the outcome cannot be stored with that ({describe_error(error)}). Reset it before the body "
                "returns."
            ) from error
        raise


@contextmanager
def stale_if_impatient() -> Iterator[None]:
    """Raise Stale if the server cancels a statement of the executor in a body's transaction."""
    try:
        yield
    except django.db.OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) in IMPATIENT:
            raise Stale(f"The task's row could not be locked in time: {describe_error(error)}") from error
        raise


def _in_doubt(success: CompletedAttempt, failure: CompletedAttempt) -> CompletedAttempt:
    """
    Let the row decide: COMMIT raised, or a hook right after it.

    The loop commits another outcome. If the first commit took place, that outcome is lost and the task was successful.
    If it did not, nothing was written. The attempt has failed if the database gave a reason. Otherwise the task is
    released, and no attempt is counted.
    """
    claimed, error = success.running.claimed, failure.error
    mask = mask_for(claimed, success.running.identity.options)
    logger.warning(
        "task.commit_unconfirmed task=%s id=%s error=%s",
        printable(claimed.task_type),
        claimed.id,
        "" if error is None else format_first_line(error, mask),
        exc_info=None if isinstance(error, django.db.Error) else error,  # only the log has a failed hook of the commit
        extra={"mask": mask},
    )
    if not is_verdict(error):
        failure = replace(failure, outcome=replace(release_outcome(claimed), worker_id=success.outcome.worker_id))
    return replace(failure, success_in_doubt=success)


def forbidden_in_transaction(attempt: Attempt, error: BaseException) -> GiveUp | None:
    """Return an error that names the cause, if a body did what the transaction of its outcome never allows."""
    is_forbidden = isinstance(error, (RuntimeError, TransactionManagementError)) and describe_error(error).startswith(
        FORBIDDEN
    )
    if not is_forbidden and getattr(error.__cause__, "sqlstate", None) != IN_TRANSACTION:
        return None
    where = "atomic=True runs the body" if attempt.task.atomic else "The function that a poll returned runs"
    problem = GiveUp(
        f"{where} in the transaction of its outcome, where durable=True, commit(), rollback(), set_autocommit() and "
        f"statements such as VACUUM cannot work: {describe_error(error)}"
    )
    problem.__cause__ = error
    return problem.with_traceback(error.__traceback__)


def is_verdict(error: BaseException | None) -> bool:
    """Return whether the database refused a COMMIT, as by a deferred constraint. Otherwise its result is unknown."""
    state = getattr(getattr(error, "__cause__", None), "sqlstate", None)
    if state is not None:
        return not state.startswith((*CONNECTION_STATES, *EXHAUSTED))
    return isinstance(error, (django.db.IntegrityError, django.db.DataError))


def is_exhausted(error: BaseException) -> bool:
    """Return whether the server has run out of disk, memory or connections."""
    return str(getattr(error.__cause__, "sqlstate", "") or "").startswith(EXHAUSTED)
