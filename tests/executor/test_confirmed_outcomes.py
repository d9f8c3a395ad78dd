"""After a commit without a clear answer, the row of the task decides."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import DataError, OperationalError
from msgspec.structs import replace

from jobqueue.engine import engine_for
from jobqueue.exceptions import ClaimLost
from jobqueue.executor.running.attempt import CompletedAttempt, RunningTask
from jobqueue.executor.running.task_runner import failure_outcome
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.values.records import CommitResult, Outcome
from jobqueue.values.states import Status
from tests.executor.harness import make_running
from tests.factories import TaskFactory

pytestmark = pytest.mark.django_db

Row = tuple[int, str, int, int]  # claim_number, status, the number of a claim that was rescued or 0, polls


def success(running: RunningTask, status: Status = Status.SUCCESSFUL) -> CompletedAttempt:
    claim_number = running.claimed.claim_number
    outcome = Outcome(task_id=running.id, claim_number=claim_number, status=status, attempts=0, return_value="7")
    return CompletedAttempt(running=running, outcome=outcome)


def failure(running: RunningTask) -> CompletedAttempt:
    error = ValueError("as asked")
    return CompletedAttempt(running=running, outcome=failure_outcome(running, error), error=error)


def retry(running: RunningTask) -> CompletedAttempt:
    failed = failure(running)
    return replace(failed, outcome=replace(failed.outcome, status=Status.SCHEDULED, wake_after_seconds=1.0))


def claim() -> RunningTask:
    return make_running(claim_number=5, executor_losses=1)


def tasks_with(completed: CompletedAttempt, row: Row | None = None) -> RunningTasks:
    """Return running tasks with one completed attempt, and store the current row of its task."""
    if row is not None:
        values: dict[str, Any] = dict(zip(("claim_number", "status", "rescued", "polls"), row, strict=True))
        if number := values.pop("rescued"):
            values["errors"] = [{"claim_number": number, "exception_class_path": "jobqueue.exceptions.ExecutorLost"}]
        holder = {"executor_id": uuid4()} if values["status"] == Status.RUNNING else {}
        TaskFactory.create(id=completed.running.id, **values, **holder)
    tasks = RunningTasks(engine_for("default"))
    tasks.add([completed.running])
    assert tasks.complete([completed]) == []
    return tasks


def lost(completed: CompletedAttempt) -> CommitResult:
    return CommitResult(lost=frozenset({completed.running.id}))


@pytest.mark.parametrize(
    ("make", "row", "status"),
    [
        (success, (5, "SUCCESSFUL", 0, 1), Status.SUCCESSFUL),
        (success, None, None),  # not in a restored backup
        (success, (4, "READY", 0, 0), None),  # claimed only after the backup
        (retry, (4, "READY", 0, 0), None),
        (failure, (5, "FAILED", 0, 0), Status.FAILED),
        (failure, (6, "RUNNING", 0, 0), Status.FAILED),  # requeued by a person
        (retry, (5, "SCHEDULED", 0, 0), Status.SCHEDULED),
        (retry, (5, "READY", 0, 0), Status.SCHEDULED),  # due by now
        (retry, (6, "RUNNING", 0, 0), Status.SCHEDULED),  # claimed by now
        (retry, (5, "CANCELLED", 0, 0), Status.CANCELLED),
        (retry, None, None),
        (success, (5, "READY", 5, 0), None),  # rescued
        (success, (5, "FAILED", 5, 0), None),  # lost once too often
        (success, (6, "RUNNING", 5, 0), None),
        (success, (6, "SUCCESSFUL", 5, 1), None),
    ],
)
def test_row_decides_an_outcome_in_doubt(make: Any, row: Row | None, status: Status | None) -> None:
    completed = make(claim())
    tasks = tasks_with(completed, row)
    tasks.mark_in_doubt()

    assert tasks.confirm(lost(completed)) == [(completed, status)]
    assert not tasks.has_completed


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize(("kept_seconds", "status"), [(0, Status.SUCCESSFUL), (3600, None), (None, None)])
def test_missing_row_was_pruned_only_if_retention_allows_it(
    options: Any, kept_seconds: int | None, status: Status | None, is_atomic: bool
) -> None:
    options(RETENTION={"SUCCESSFUL": kept_seconds})
    done, otherwise = success(running := claim()), failure(running)
    completed = replace(otherwise, success_in_doubt=done) if is_atomic else done
    tasks = tasks_with(completed)
    tasks.mark_in_doubt()

    expected = (done, status) if status is not None else (completed, None)
    assert tasks.confirm(lost(completed)) == [expected]


def test_outcome_without_doubt_is_lost_for_any_row() -> None:
    completed = success(claim())

    assert tasks_with(completed, (5, "SUCCESSFUL", 0, 1)).confirm(lost(completed)) == [(completed, None)]


@pytest.mark.parametrize(
    ("row", "is_success"),
    [
        ((5, "SUCCESSFUL", 0, 1), True),
        ((7, "READY", 6, 1), True),  # requeued by a person, and then rescued from another executor
        (None, False),
        ((4, "READY", 0, 0), False),  # of a restored backup
        ((6, "RUNNING", 0, 1), True),  # requeued by a person
        ((5, "READY", 5, 0), False),
        ((6, "RUNNING", 5, 0), False),
        ((6, "SUCCESSFUL", 5, 1), False),  # rescued, and completed by another executor
    ],
)
def test_row_decides_an_atomic_commit_in_doubt(row: Row | None, is_success: bool) -> None:
    done, otherwise = success(running := claim()), failure(running)
    completed = replace(otherwise, success_in_doubt=done)

    expected = (done, Status.SUCCESSFUL) if is_success else (completed, None)
    assert tasks_with(completed, row).confirm(lost(completed)) == [expected]


@pytest.mark.parametrize("row", [(5, "SUSPENDED", 0, 1), (5, "READY", 0, 1), (6, "RUNNING", 0, 1), (7, "READY", 6, 2)])
def test_poll_of_an_actor_was_committed_where_its_row_counts_it(row: Row) -> None:
    done, otherwise = success(running := claim()), failure(running)
    done = replace(done, outcome=replace(done.outcome, status=Status.SUSPENDED))
    completed = replace(otherwise, success_in_doubt=done)

    assert tasks_with(completed, row).confirm(lost(completed)) == [(done, Status.SUSPENDED)]


def test_atomic_commit_did_not_take_place_where_the_failure_is_committed() -> None:
    completed = replace(failure(running := claim()), success_in_doubt=success(running))

    assert tasks_with(completed).confirm(CommitResult(done={running.id: Status.FAILED})) == [(completed, Status.FAILED)]


def test_failure_of_an_atomic_commit_may_be_in_doubt_itself() -> None:
    completed = replace(failure(running := claim()), success_in_doubt=success(running))
    tasks = tasks_with(completed, (5, "FAILED", 0, 0))
    tasks.mark_in_doubt()

    assert tasks.confirm(lost(completed)) == [(completed, Status.FAILED)]


def test_nothing_is_forgotten_when_the_database_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    completed = success(claim())
    tasks = tasks_with(completed)
    tasks.mark_in_doubt()

    def fail(*_: Any) -> None:
        raise OperationalError("unreachable again")

    monkeypatch.setattr("django.db.models.query.QuerySet.__iter__", fail)
    with pytest.raises(OperationalError):
        tasks.confirm(lost(completed))

    assert tasks.pending() == [completed.outcome]


def test_outcome_of_a_locked_row_stays_pending() -> None:
    tasks = tasks_with(completed := success(claim()))

    assert tasks.confirm(CommitResult(unknown=frozenset({completed.running.id}))) == []
    assert tasks.pending() == [completed.outcome]


def test_refused_outcome_ends_failed_and_at_last_without_its_error() -> None:
    tasks = tasks_with(completed := success(claim()))

    assert tasks.confirm(CommitResult(refused={completed.running.id: DataError("too long")})) == []
    (first,) = tasks.pending()
    tasks.confirm(CommitResult(refused={completed.running.id: DataError("too long")}))
    (second,) = tasks.pending()

    assert first.status is second.status is Status.FAILED
    assert first.error is not None
    assert "The database refused the outcome: too long" in first.error
    assert (first.return_value, second.return_value, second.error) == (None, None, None)


def test_earlier_of_two_claims_of_a_task_is_lost_when_it_ends_first() -> None:
    earlier = success(make_running())
    tasks = tasks_with(earlier)
    later = success(make_running(id=earlier.running.id))
    tasks.add([later.running])

    assert earlier.running.reason is ClaimLost
    assert tasks.complete([later]) == [earlier]
    assert tasks.pending() == [later.outcome]


def test_earlier_of_two_claims_of_a_task_is_lost_when_it_ends_last() -> None:
    later = success(make_running())
    earlier = success(make_running(id=later.running.id, claim_number=2))

    tasks = tasks_with(later)

    assert tasks.complete([earlier]) == [earlier]
    assert tasks.pending() == [later.outcome]
