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
from msgspec.structs import replace

from jobqueue.engine.engine import Engine
from jobqueue.exceptions import JobQueueError, Stale
from jobqueue.executor.completer import undelivered
from jobqueue.executor.hold import Hold
from jobqueue.executor.interrupt import run_interruptibly
from jobqueue.executor.run import (
    Ended,
    Loaded,
    Raised,
    Returned,
    Worker,
    begin_again,
    call,
    causes,
    conclude,
    good_poll,
    refused_by_database,
)
from jobqueue.executor.sessions import Session
from jobqueue.executor.telemetry.errors import first_line_of, from_the_body, message_of
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.executor.telemetry.redaction_filter import mask_for
from jobqueue.executor.turn import poll_again
from jobqueue.failpoints import reach
from jobqueue.printable import printable
from jobqueue.records import Outcome, released

logger = get_logger(__name__)

IMPATIENT = ("57014", "55P03")  # statement_timeout, or somebody's pg_cancel_backend(); lock_timeout
CONFLICTS = ("40001", "40P01")  # not to be serialized with another transaction, or chosen to end a deadlock
# Classes of SQLSTATE: the server's disk is full or broken, its memory or its connections are used up; it tells nothing.
EXHAUSTED, CONNECTION_STATES = ("53", "58"), ("08", "57P")


class _ClaimLost(JobQueueError):
    """Another executor holds the task now, or it has ended."""


class _RolledBack(Exception):
    """The transaction is undone, and this is what became of the poll."""

    def __init__(self, ended: Ended) -> None:
        self.ended = ended


def poll_atomically(
    hold: Hold, loaded: Loaded, engine: Engine, worker: Worker, session: Session, *, durable: bool = True
) -> Ended:
    """
    Run the body and commit its outcome in one transaction, at the site's level of isolation.

    durable: False for a test, which may have opened one around it.
    """

    def body() -> Outcome:
        return good_poll(hold, loaded, call(hold, loaded), worker)

    opened = transaction.atomic(using=engine.database, durable=durable)
    return _commit_with(hold, loaded, engine, worker, body, session, opened)


def commit_with(
    hold: Hold, loaded: Loaded, engine: Engine, worker: Worker, function: Callable[[], Any], session: Session
) -> Ended:
    """
    Run the function that a poll returned in the committing transaction, with the task's row locked.

    READ COMMITTED, as every transaction that looks into the inbox after the lock.
    """

    def in_its_row() -> Outcome:
        with stale_if_impatient():
            is_held = engine.hold(hold.claimed, UUID(worker.executor_id))
        if not is_held:
            raise _ClaimLost
        return good_poll(hold, loaded, function(), worker)

    return _commit_with(hold, loaded, engine, worker, in_its_row, session, engine.transaction())


def _commit_with(
    hold: Hold,
    loaded: Loaded,
    engine: Engine,
    worker: Worker,
    body: Callable[[], Outcome],
    session: Session,
    opened: AbstractContextManager[None],
) -> Ended:
    """What does not succeed goes the ordinary way."""
    over: Ended | None = None
    has_begun = False
    try:
        with opened:
            has_begun = True
            ending = run_interruptibly(hold, session, body)
            over = _conclude(hold, loaded, ending, worker)
            over = _complete(over, engine, worker, session)
            reach("atomic.before")
        reach("atomic.after")
    except _RolledBack as undone:
        return undone.ended
    except BaseException as error:  # noqa: BLE001 - a hook of the body's for after the commit may raise anything
        failure = _conclude(hold, loaded, Raised(from_the_body(error)), worker)
        is_unwritten = over is not None and over.outcome.is_good_poll and not over.is_committed
        is_the_servers = is_exhausted(error) if is_unwritten else is_of_database(error) and not has_begun
        if is_the_servers and hold.reason is None:
            # However often: a server without room for an outcome may have some for the next claim.
            return replace(failure, outcome=poll_again(hold.claimed, worker.options.poll_interval))
        if over is None or is_unwritten:
            return failure
        # A body that did not succeed ends by its own error, not by what the rollback met.
        return _in_doubt(over, failure, worker) if over.is_committed else over
    return over


def _conclude(hold: Hold, loaded: Loaded, ending: Returned | Raised, worker: Worker) -> Ended:
    """As conclude(); what only met another transaction is undone, and begins again uncounted."""
    over = conclude(hold, loaded, ending, worker)
    if hold.reason is None and any(getattr(cause, "sqlstate", None) in CONFLICTS for cause in causes(over.error)):
        outcome = begin_again(hold.claimed, worker)
        return over if outcome is None else replace(over, outcome=outcome)
    return over


def _complete(over: Ended, engine: Engine, worker: Worker, session: Session) -> Ended:
    """Write the outcome of a body that succeeded. Raises _RolledBack."""
    if not over.outcome.is_good_poll:
        raise _RolledBack(over)
    session.check(atomic=engine.database)
    with stale_if_impatient():
        committed = engine.commit([over.outcome], holder=UUID(worker.executor_id), wait=True)
    if over.hold.id in committed.refused:
        raise _RolledBack(refused_by_database(over, committed.refused[over.hold.id], worker))
    if over.hold.id in committed.unknown:
        # The row of somebody it writes to is held. Waiting here, with rows in hand, would be how deadlocks begin.
        raise _RolledBack(replace(over, outcome=poll_again(over.hold.claimed, worker.options.poll_interval)))
    if over.hold.id not in committed.done:
        # The pulse presents the same outcome once more, is told that it is lost, and says so.
        raise _RolledBack(over)
    counts = undelivered(engine, {over.hold.id: over}, committed)
    return replace(over, is_committed=True, wake=committed.wake, undelivered=counts[over.hold.id])


@contextmanager
def stale_if_impatient() -> Iterator[None]:
    """Around what we ask for in a body's transaction: that the server gave it up is no failed attempt of the body's."""
    try:
        yield
    except django.db.OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) in IMPATIENT:
            raise Stale(f"The task's row was not to be had in time: {message_of(error)}") from error
        raise


def _in_doubt(success: Ended, failure: Ended, worker: Worker) -> Ended:
    """
    Leave the decision to the row: COMMIT raised, or what ran right after it.

    The pulse presents another outcome. Where the commit took place, that one is lost and this was a
    success; where it did not, nothing happened: a failed attempt if the database said why, else the
    body runs again as if it had not run at all.
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
        failure = replace(failure, outcome=replace(released(hold.claimed), worker_id=success.outcome.worker_id))
    return replace(failure, if_lost=success)


def is_verdict(error: BaseException | None) -> bool:
    """Whether the database answered a COMMIT with no, as to a deferred constraint; else nobody knows."""
    state = getattr(getattr(error, "__cause__", None), "sqlstate", None)
    if state is not None:
        return not state.startswith((*CONNECTION_STATES, *EXHAUSTED))
    return isinstance(error, (django.db.IntegrityError, django.db.DataError))


def is_exhausted(error: BaseException) -> bool:
    """Whether the server lacks what it needs, whatever it is asked for."""
    return str(getattr(error.__cause__, "sqlstate", "") or "").startswith(EXHAUSTED)


def is_of_database(error: BaseException) -> bool:
    return isinstance(error, (django.db.OperationalError, django.db.InterfaceError))
