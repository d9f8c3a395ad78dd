"""After a commit without a clear answer, the row of the task decides."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import DataError, OperationalError
from msgspec.structs import replace

from jobqueue.conf import Options
from jobqueue.engine import engine_for
from jobqueue.executor.completer import Completer
from jobqueue.executor.running.task_runner import CompletedAttempt, ExecutorIdentity, failure_outcome, function_outcome
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.records import ClaimedTask, CommitResult, Status
from tests.executor.harness import make_claim
from tests.factories import TaskFactory

pytestmark = pytest.mark.django_db

Row = tuple[int, str, int, int]  # claim_number, status, executor_losses, polls
WORKER = ExecutorIdentity(executor_id="x", executor_name="x", options=Options())


def success(claimed: ClaimedTask) -> CompletedAttempt:
    return CompletedAttempt(hold=RunningTask(claimed), outcome=function_outcome(claimed, "7", WORKER))


def failure(claimed: ClaimedTask) -> CompletedAttempt:
    error, hold = ValueError("as asked"), RunningTask(claimed)
    return CompletedAttempt(hold=hold, outcome=failure_outcome(hold, error, WORKER), error=error)


def retry(claimed: ClaimedTask) -> CompletedAttempt:
    over = failure(claimed)
    return replace(over, outcome=replace(over.outcome, status=Status.SCHEDULED, wake_after_seconds=1.0))


def claim() -> ClaimedTask:
    return make_claim(claim_number=5, executor_losses=1)


def completer_with(over: CompletedAttempt, row: Row | None = None) -> Completer:
    """Return a completer with one attempt, and the current row of its task."""
    if row is not None:
        values = dict(zip(("claim_number", "status", "executor_losses", "polls"), row, strict=True))
        holder = {"executor_id": uuid4()} if values["status"] == Status.RUNNING else {}
        TaskFactory.create(id=over.hold.id, **values, **holder)
    completer = Completer(engine_for("default"), WORKER)
    assert completer.add(over) is None
    return completer


def lost(over: CompletedAttempt) -> CommitResult:
    return CommitResult(lost=frozenset({over.hold.id}))


@pytest.mark.parametrize(
    ("make", "row", "status"),
    [
        (success, (5, "SUCCESSFUL", 1, 1), Status.SUCCESSFUL),
        (success, None, Status.SUCCESSFUL),  # pruned at once
        (failure, (5, "FAILED", 1, 0), Status.FAILED),
        (failure, (6, "RUNNING", 0, 0), Status.FAILED),  # requeued by a person
        (retry, (5, "SCHEDULED", 1, 0), Status.SCHEDULED),
        (retry, (5, "READY", 1, 0), Status.SCHEDULED),  # due by now
        (retry, (6, "RUNNING", 1, 0), Status.SCHEDULED),  # claimed by now
        (retry, (5, "CANCELLED", 1, 0), Status.CANCELLED),
        (retry, None, None),
        (success, (5, "READY", 2, 0), None),  # rescued
        (success, (5, "FAILED", 2, 0), None),  # lost once too often
        (success, (6, "RUNNING", 2, 0), None),
        (success, (6, "SUCCESSFUL", 2, 1), None),
    ],
)
def test_row_decides_an_outcome_in_doubt(make: Any, row: Row | None, status: Status | None) -> None:
    over = make(claim())
    completer = completer_with(over, row)
    completer.mark_in_doubt()

    assert completer.confirm(lost(over)) == [(over, status)]
    assert len(completer) == 0


def test_outcome_without_doubt_is_lost_for_any_row() -> None:
    over = success(claim())

    assert completer_with(over, (5, "SUCCESSFUL", 1, 1)).confirm(lost(over)) == [(over, None)]


@pytest.mark.parametrize(
    ("row", "is_success"),
    [
        ((5, "SUCCESSFUL", 1, 1), True),
        (None, True),
        ((6, "RUNNING", 0, 1), True),  # requeued by a person
        ((5, "READY", 2, 0), False),
        ((6, "RUNNING", 2, 0), False),
        ((6, "SUCCESSFUL", 2, 1), False),  # rescued, and completed by another executor
    ],
)
def test_row_decides_an_atomic_commit_in_doubt(row: Row | None, is_success: bool) -> None:
    done, otherwise = success(claimed := claim()), failure(claimed)
    over = replace(otherwise, if_lost=done)

    expected = (done, Status.SUCCESSFUL) if is_success else (over, None)
    assert completer_with(over, row).confirm(lost(over)) == [expected]


@pytest.mark.parametrize("row", [(5, "SUSPENDED", 1, 1), (5, "READY", 1, 1), (6, "RUNNING", 1, 1), (7, "READY", 2, 2)])
def test_poll_of_an_actor_was_committed_where_its_row_counts_it(row: Row) -> None:
    done, otherwise = success(claimed := claim()), failure(claimed)
    done = replace(done, outcome=replace(done.outcome, status=Status.SUSPENDED))
    over = replace(otherwise, if_lost=done)

    assert completer_with(over, row).confirm(lost(over)) == [(done, Status.SUSPENDED)]


def test_atomic_commit_did_not_take_place_where_the_failure_is_committed() -> None:
    over = replace(failure(claimed := claim()), if_lost=success(claimed))

    assert completer_with(over).confirm(CommitResult(done={claimed.id: Status.FAILED})) == [(over, Status.FAILED)]


def test_failure_of_an_atomic_commit_may_be_in_doubt_itself() -> None:
    over = replace(failure(claimed := claim()), if_lost=success(claimed))
    completer = completer_with(over, (5, "FAILED", 1, 0))
    completer.mark_in_doubt()

    assert completer.confirm(lost(over)) == [(over, Status.FAILED)]


def test_nothing_is_forgotten_when_the_database_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    over = success(claim())
    completer = completer_with(over)
    completer.mark_in_doubt()

    def fail(*_: Any) -> None:
        raise OperationalError("unreachable again")

    monkeypatch.setattr(Completer, "_rows", fail)
    with pytest.raises(OperationalError):
        completer.confirm(lost(over))

    assert completer.pending() == [over.outcome]


def test_outcome_of_a_locked_row_stays_pending() -> None:
    completer = completer_with(over := success(claim()))

    assert completer.confirm(CommitResult(unknown=frozenset({over.hold.id}))) == []
    assert completer.pending() == [over.outcome]


def test_refused_outcome_ends_failed_and_at_last_without_its_error() -> None:
    completer = completer_with(over := success(claim()))

    assert completer.confirm(CommitResult(refused={over.hold.id: DataError("too long")})) == []
    (first,) = completer.pending()
    completer.confirm(CommitResult(refused={over.hold.id: DataError("too long")}))
    (second,) = completer.pending()

    assert first.status is second.status is Status.FAILED
    assert first.error is not None
    assert "The database refused the outcome: too long" in first.error
    assert (first.return_value, second.return_value, second.error) == (None, None, None)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_older_of_two_claims_of_a_task_is_lost(order: tuple[int, int]) -> None:
    claimed = make_claim()
    attempts = {number: success(make_claim(id=claimed.id, claim_number=number)) for number in order}
    completer = completer_with(attempts[order[0]])

    assert completer.add(attempts[order[1]]) is attempts[1]
    assert completer.pending() == [attempts[2].outcome]
