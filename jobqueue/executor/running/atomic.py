"""
A body and its outcome in one transaction, on the worker's own connection.

So run `@task(atomic=True)`, and the function that a poll of an actor may return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

import django.db
from django.db import transaction
from django.db.transaction import TransactionManagementError
from msgspec.structs import replace

from jobqueue.engine.engine import Engine
from jobqueue.exceptions import JobQueueError, Stale
from jobqueue.executor.completer import undelivered
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.running.actor_runner import poll_again
from jobqueue.executor.running.interrupt import run_interruptibly
from jobqueue.executor.running.task_runner import (
    CompletedAttempt,
    ExecutorIdentity,
    PreparedTask,
    Raised,
    Returned,
    call,
    causes,
    reject_by_database,
    retry_stale,
    success_outcome,
    to_outcome,
)
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.telemetry.errors import first_line_of, from_the_body, message_of
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.executor.telemetry.redaction_filter import mask_for
from jobqueue.failpoints import failpoint
from jobqueue.printable import printable
from jobqueue.records import Outcome, release_outcome

logger = get_logger(__name__)

IMPATIENT = ("57014", "55P03")  # statement_timeout or pg_cancel_backend(); lock_timeout
CONFLICTS = ("40001", "40P01")  # serialization failure, deadlock
# Classes of SQLSTATE: no disk, memory or connections left on the server; the connection is lost.
EXHAUSTED, CONNECTION_STATES = ("53", "58"), ("08", "57P")


class _ClaimLost(JobQueueError):
    """Another executor holds the task now, or it has ended."""


class _RolledBack(Exception):
    """Rolls the transaction back. ended: the attempt and its outcome."""

    def __init__(self, ended: CompletedAttempt) -> None:
        self.ended = ended


def poll_atomically(
    hold: RunningTask,
    loaded: PreparedTask,
    engine: Engine,
    worker: ExecutorIdentity,
    session: TaskConnections,
    *,
    durable: bool = True,
) -> CompletedAttempt:
    """
    Run the body and commit its outcome in one transaction, at the site's level of isolation.

    durable: False for a test, which may have opened one around it.
    """

    def body() -> Outcome:
        return success_outcome(hold, loaded, call(hold, loaded), worker)

    opened = transaction.atomic(using=engine.database, durable=durable)
    return _commit_with(hold, loaded, engine, worker, body, session, opened)


def commit_with(
    hold: RunningTask,
    loaded: PreparedTask,
    engine: Engine,
    worker: ExecutorIdentity,
    function: Callable[[], Any],
    session: TaskConnections,
) -> CompletedAttempt:
    """
    Run the function that a poll returned in the committing transaction, with the task's row locked.

    READ COMMITTED, as every transaction that reads the inbox after the lock.
    """

    def in_its_row() -> Outcome:
        with stale_if_impatient():
            is_held = engine.lock_claim(hold.claimed, UUID(worker.executor_id))
        if not is_held:
            raise _ClaimLost
        return success_outcome(hold, loaded, function(), worker)

    return _commit_with(hold, loaded, engine, worker, in_its_row, session, engine.transaction())


def end_attempt(
    hold: RunningTask,
    loaded: PreparedTask,
    ending: Returned | Raised,
    engine: Engine,
    worker: ExecutorIdentity,
    connections: TaskConnections,
) -> CompletedAttempt:
    """
    Turn the finished end of a body into its outcome. Run the function that a poll returned.

    A body that left a transaction open has failed, because what it wrote there is rolled back.
    """
    if isinstance(ending, Returned):
        try:
            connections.check()
        except TransactionManagementError as error:
            ending = Raised(error.with_traceback(None))
    match ending:
        case Returned(value) if not isinstance(value, Outcome):
            return commit_with(hold, loaded, engine, worker, value, connections)
    return to_outcome(hold, loaded, ending, worker)


def _commit_with(
    hold: RunningTask,
    loaded: PreparedTask,
    engine: Engine,
    worker: ExecutorIdentity,
    body: Callable[[], Outcome],
    session: TaskConnections,
    opened: AbstractContextManager[None],
) -> CompletedAttempt:
    """Commit a success with the effects of its body. Return any other outcome for the loop to commit."""
    attempt: CompletedAttempt | None = None
    has_begun = False
    try:
        with opened:
            has_begun = True
            ending = run_interruptibly(hold, session, body)
            attempt = _outcome_of_transaction(hold, loaded, ending, worker)
            attempt = _complete(attempt, engine, worker, session)
            failpoint("atomic.before")
        failpoint("atomic.after")
    except _RolledBack as undone:
        return undone.ended
    except BaseException as error:  # noqa: BLE001 - a body's on_commit hook may raise anything
        failure = _outcome_of_transaction(hold, loaded, Raised(from_the_body(error)), worker)
        is_unwritten = attempt is not None and attempt.outcome.has_succeeded and not attempt.is_committed
        is_refused = not has_begun and isinstance(error, (django.db.OperationalError, django.db.InterfaceError))
        is_the_servers = is_exhausted(error) if is_unwritten else is_refused
        if is_the_servers and hold.reason is None:
            # No attempt is counted, however often: the server may have room again at the next claim.
            return replace(failure, outcome=poll_again(hold.claimed, worker.options.poll_interval))
        if attempt is None or is_unwritten:
            return failure
        # A body that failed keeps its own error, not the error of the rollback.
        return _in_doubt(attempt, failure, worker) if attempt.is_committed else attempt
    return attempt


def _outcome_of_transaction(
    hold: RunningTask, loaded: PreparedTask, ending: Returned | Raised, worker: ExecutorIdentity
) -> CompletedAttempt:
    """As to_outcome(). After a conflict with another transaction the task runs again, and no attempt is counted."""
    attempt = to_outcome(hold, loaded, ending, worker)
    if hold.reason is None and any(getattr(cause, "sqlstate", None) in CONFLICTS for cause in causes(attempt.error)):
        outcome = retry_stale(hold.claimed, worker)
        return attempt if outcome is None else replace(attempt, outcome=outcome)
    return attempt


def _complete(
    attempt: CompletedAttempt, engine: Engine, worker: ExecutorIdentity, session: TaskConnections
) -> CompletedAttempt:
    """Write the outcome of a body that succeeded. Raises _RolledBack."""
    if not attempt.outcome.has_succeeded:
        raise _RolledBack(attempt)
    session.check(atomic=engine.database)
    with stale_if_impatient():
        committed = engine.commit([attempt.outcome], holder=UUID(worker.executor_id), wait=True)
    if attempt.hold.id in committed.refused:
        raise _RolledBack(reject_by_database(attempt, committed.refused[attempt.hold.id], worker))
    if attempt.hold.id in committed.unknown:
        # Another transaction has locked the row of a receiver. Waiting here, with locks held, could cause a deadlock.
        raise _RolledBack(replace(attempt, outcome=poll_again(attempt.hold.claimed, worker.options.poll_interval)))
    if attempt.hold.id not in committed.done:
        # The loop commits the same outcome again, learns that the claim is lost, and logs it.
        raise _RolledBack(attempt)
    counts = undelivered(engine, {attempt.hold.id: attempt}, committed)
    return replace(attempt, is_committed=True, wake=committed.wake, undelivered=counts[attempt.hold.id])


@contextmanager
def stale_if_impatient() -> Iterator[None]:
    """Raise Stale if the server cancels a statement of the executor in a body's transaction."""
    try:
        yield
    except django.db.OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) in IMPATIENT:
            raise Stale(f"The task's row was not to be had in time: {message_of(error)}") from error
        raise


def _in_doubt(success: CompletedAttempt, failure: CompletedAttempt, worker: ExecutorIdentity) -> CompletedAttempt:
    """
    Let the row decide: COMMIT raised, or a hook right after it.

    The loop commits another outcome. If the first commit took place, that outcome is lost and the task was successful.
    If it did not, nothing was written. The attempt has failed if the database gave a reason. Otherwise the task is
    released, and no attempt is counted.
    """
    hold, error = success.hold, failure.error
    mask = mask_for(hold.claimed, worker.options)
    logger.warning(
        "task.commit_in_doubt task=%s id=%s error=%s",
        printable(hold.claimed.task_type),
        hold.id,
        "" if error is None else first_line_of(error, mask),
        exc_info=None if isinstance(error, django.db.Error) else error,  # only the log has a failed hook of the commit
        extra={"mask": mask},
    )
    if not is_verdict(error):
        failure = replace(failure, outcome=replace(release_outcome(hold.claimed), worker_id=success.outcome.worker_id))
    return replace(failure, if_lost=success)


def is_verdict(error: BaseException | None) -> bool:
    """Return whether the database refused a COMMIT, as by a deferred constraint. Otherwise its result is unknown."""
    state = getattr(getattr(error, "__cause__", None), "sqlstate", None)
    if state is not None:
        return not state.startswith((*CONNECTION_STATES, *EXHAUSTED))
    return isinstance(error, (django.db.IntegrityError, django.db.DataError))


def is_exhausted(error: BaseException) -> bool:
    """Return whether the server has run out of disk, memory or connections."""
    return str(getattr(error.__cause__, "sqlstate", "") or "").startswith(EXHAUSTED)
