"""Outcomes whose commit gave no answer, or an unclear one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DataError, OperationalError
from msgspec.structs import replace

from jobqueue.conf import Options
from jobqueue.executor.hold import Hold
from jobqueue.executor.ledger import Ledger
from jobqueue.executor.run import Ended, Worker, failed, succeeded
from jobqueue.records import ClaimedTask, CommitResult, Status
from tests.executor.harness import make_claim

Row = tuple[int, str, int, int]
WORKER = Worker(executor_id="x", executor_name="x", options=Options())


class Rows:
    """What the ledger looks up: (claim_number, status, executor_losses, polls) of its only task, None, or an error."""

    def __init__(self, claimed: ClaimedTask, row: Row | Exception | None) -> None:
        self.claimed, self.row = claimed, row

    def filter(self, pk__in: Any) -> Rows:
        return self

    def values_list(self, *_: str) -> list[tuple[Any, ...]]:
        if isinstance(self.row, Exception):
            raise self.row
        return [] if self.row is None else [(self.claimed.id, *self.row)]


def success(claimed: ClaimedTask) -> Ended:
    return Ended(hold=Hold(claimed), outcome=succeeded(claimed, "7", WORKER))


def failure(claimed: ClaimedTask) -> Ended:
    error = ValueError("as asked")
    hold = Hold(claimed)
    return Ended(hold=hold, outcome=failed(hold, error, WORKER), error=error)


def retry(claimed: ClaimedTask) -> Ended:
    over = failure(claimed)
    return replace(over, outcome=replace(over.outcome, status=Status.SCHEDULED, wake_after_seconds=1.0))


def ledger_with(over: Ended, row: Row | Exception | None = None) -> Ledger:
    ledger = Ledger(SimpleNamespace(tasks=Rows(over.hold.claimed, row)), WORKER)  # type: ignore[arg-type]
    assert ledger.add(over) is None
    return ledger


def lost(over: Ended) -> CommitResult:
    return CommitResult(lost=frozenset({over.hold.id}))


CLAIM = {"claim_number": 5, "executor_losses": 1}


@pytest.mark.parametrize(
    ("make", "row", "status"),
    [
        (success, (5, "SUCCESSFUL", 1, 1), Status.SUCCESSFUL),
        (success, None, Status.SUCCESSFUL),  # pruned at once
        (failure, (5, "FAILED", 1, 0), Status.FAILED),
        (failure, (6, "RUNNING", 0, 0), Status.FAILED),  # somebody requeued it
        (retry, (5, "SCHEDULED", 1, 0), Status.SCHEDULED),
        (retry, (5, "READY", 1, 0), Status.SCHEDULED),  # due by now
        (retry, (6, "RUNNING", 1, 0), Status.SCHEDULED),  # taken up by now
        (retry, (5, "CANCELLED", 1, 0), Status.CANCELLED),
        (retry, None, None),
        (success, (5, "READY", 2, 0), None),  # rescued
        (success, (5, "FAILED", 2, 0), None),  # lost once too often
        (success, (6, "RUNNING", 2, 0), None),
        (success, (6, "SUCCESSFUL", 2, 1), None),
    ],
)
def test_an_outcome_in_doubt_is_decided_by_its_row(make: Any, row: Row | None, status: Status | None) -> None:
    over = make(make_claim(**CLAIM))
    ledger = ledger_with(over, row)
    ledger.doubt()

    assert ledger.settle(lost(over)) == [(over, status)]
    assert len(ledger) == 0


def test_an_outcome_that_nobody_doubts_is_lost_without_a_look() -> None:
    over = success(make_claim(**CLAIM))
    ledger = ledger_with(over, OperationalError("asked"))

    assert ledger.settle(lost(over)) == [(over, None)]


@pytest.mark.parametrize(
    ("row", "is_success"),
    [
        ((5, "SUCCESSFUL", 1, 1), True),
        (None, True),
        ((6, "RUNNING", 0, 1), True),  # somebody requeued it
        ((5, "READY", 2, 0), False),
        ((6, "RUNNING", 2, 0), False),
        ((6, "SUCCESSFUL", 2, 1), False),  # rescued, and done by another
    ],
)
def test_an_atomic_commit_in_doubt_took_place_where_the_other_outcome_is_lost(
    row: Row | None, is_success: bool
) -> None:
    claimed = make_claim(**CLAIM)
    done, otherwise = success(claimed), failure(claimed)
    over = Ended(hold=otherwise.hold, outcome=otherwise.outcome, error=otherwise.error, if_lost=done)
    ledger = ledger_with(over, row)

    assert ledger.settle(lost(over)) == [(done, Status.SUCCESSFUL) if is_success else (over, None)]


@pytest.mark.parametrize("row", [(5, "SUSPENDED", 1, 1), (5, "READY", 1, 1), (6, "RUNNING", 1, 1), (7, "READY", 2, 2)])
def test_a_poll_of_an_actor_took_place_where_its_row_counts_it(row: Row) -> None:
    claimed = make_claim(**CLAIM)
    done, otherwise = success(claimed), failure(claimed)
    done = replace(done, outcome=replace(done.outcome, status=Status.SUSPENDED))
    over = replace(otherwise, if_lost=done)
    ledger = ledger_with(over, row)

    assert ledger.settle(lost(over)) == [(done, Status.SUSPENDED)]


def test_an_atomic_commit_in_doubt_did_not_take_place_where_the_other_outcome_is_done() -> None:
    claimed = make_claim(**CLAIM)
    over = Ended(hold=Hold(claimed), outcome=failure(claimed).outcome, if_lost=success(claimed))
    ledger = ledger_with(over)

    assert ledger.settle(CommitResult(done={claimed.id: Status.FAILED})) == [(over, Status.FAILED)]


def test_the_other_outcome_may_be_in_doubt_too() -> None:
    claimed = make_claim(**CLAIM)
    over = Ended(hold=Hold(claimed), outcome=failure(claimed).outcome, if_lost=success(claimed))
    ledger = ledger_with(over, (5, "FAILED", 1, 0))
    ledger.doubt()

    assert ledger.settle(lost(over)) == [(over, Status.FAILED)]


def test_nothing_is_struck_out_when_the_question_fails() -> None:
    over = success(make_claim(**CLAIM))
    ledger = ledger_with(over, OperationalError("away again"))
    ledger.doubt()

    with pytest.raises(OperationalError):
        ledger.settle(lost(over))

    assert ledger.outcomes() == [over.outcome]


def test_what_somebody_holds_stays_open() -> None:
    over = success(make_claim())
    ledger = ledger_with(over)

    assert ledger.settle(CommitResult(unknown=frozenset({over.hold.id}))) == []
    assert ledger.outcomes() == [over.outcome]


def test_what_the_database_refuses_ends_failed_and_at_last_without_a_word() -> None:
    over = success(make_claim())
    ledger = ledger_with(over)

    assert ledger.settle(CommitResult(refused={over.hold.id: DataError("too long")})) == []
    (first,) = ledger.outcomes()
    ledger.settle(CommitResult(refused={over.hold.id: DataError("too long")}))
    (second,) = ledger.outcomes()

    assert first.status is second.status is Status.FAILED
    assert first.error is not None
    assert "The database refused the outcome: too long" in first.error
    assert (first.return_value, second.return_value, second.error) == (None, None, None)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_claims_of_a_task_the_older_is_lost(order: tuple[int, int]) -> None:
    claimed = make_claim()
    endings = {number: success(make_claim(id=claimed.id, claim_number=number)) for number in order}
    ledger = ledger_with(endings[order[0]])

    assert ledger.add(endings[order[1]]) is endings[1]
    assert ledger.outcomes() == [endings[2].outcome]
