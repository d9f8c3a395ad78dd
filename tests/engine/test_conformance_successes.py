"""Functions that succeed and change nothing else, on every engine. PostgreSQL commits them by their own statement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.models import CounterDelta, Task
from jobqueue.values.ids import new_id
from jobqueue.values.records import CommitResult, Outcome
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, outcome, success

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

TIMES = ("finished_at", "claimed_at", "started_at", "last_attempted_at", "enqueued_at", "rank")
OWN = (*TIMES, "id", "queue_name")


def columns(row: Task) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name not in OWN and not name.startswith("_")}


@pytest.fixture
def is_own_statement(bench: Bench) -> bool:
    return isinstance(bench.engine, PostgresEngine)


def test_success_writes_the_same_row_as_beside_another_outcome(bench: Bench, is_own_statement: bool) -> None:
    alone, beside, failed = bench.running(), bench.running(), bench.running()
    poison = {"timed_out": True, "unread_polls": 3, "stale_polls": 2, "executor_losses": 1, "cause": "c", "polls": 4}
    for claimed in (alone, beside):
        bench.set(claimed.id, worker_ids=[str(n) for n in range(100)], errors=[{"attempt": 1}], **poison)

    with CaptureQueriesContext(connection) as queries:
        bench.commit(success(alone))
    bench.commit(success(beside), outcome(failed, Status.FAILED, attempts=1, error=ERROR))

    assert columns(bench.row(alone.id)) == columns(bench.row(beside.id))
    assert bench.row(alone.id).worker_ids == [*(str(n) for n in range(1, 100)), "w"]
    assert bench.moment(alone.id, "finished_at") >= bench.moment(alone.id, "started_at")
    statements = [query["sql"] for query in queries.captured_queries]
    assert any("unnest" in sql and "UPDATE" in sql for sql in statements) is is_own_statement


@pytest.mark.parametrize(
    "text", ["null", "7", '"a\\"b\\\\c{},\\n"', '{"k": [1, null, "é€"]}', '"NULL"', '" "', '"null"']
)
def test_success_stores_any_result(bench: Bench, text: str) -> None:
    claimed, other = bench.running(), bench.running()

    bench.commit(success(claimed, return_value=text), success(other, return_value=None))

    stored = Task.objects.using(bench.engine.database).values_list("return_value", flat=True)
    reference = bench.running()
    bench.commit(outcome(reference, return_value=text))
    assert stored.get(pk=claimed.id) == stored.get(pk=reference.id)
    assert stored.get(pk=other.id) is None


def test_refused_result_fails_alone(bench: Bench) -> None:
    good, bad = bench.running(), bench.running()

    answer = bench.commit(
        success(good), success(bad, return_value='"\\u0000"' if bench.engine.database == "default" else "{")
    )

    assert answer.done.get(good.id) == Status.SUCCESSFUL
    if bench.engine.database == "default":
        assert answer.refused.keys() == {bad.id}


def test_success_of_a_lost_claim_changes_nothing(bench: Bench) -> None:
    stale, good = bench.running(), bench.running()
    bench.engine.commits.release([stale])
    (fresh,) = bench.claim(queues=[stale.queue_name], executor_id=uuid4())
    gone = Outcome(
        task_id=new_id(), claim_number=1, status=Status.SUCCESSFUL, attempts=0, has_succeeded=True, worker_id="w",
        run_seconds=0.1,
    )  # fmt: skip

    answer = bench.commit(success(stale, return_value='"stale"'), success(good), gone)

    assert answer == CommitResult(done={good.id: Status.SUCCESSFUL}, lost=frozenset({stale.id, gone.task_id}))
    row = bench.row(stale.id)
    assert (row.status, row.claim_number, row.return_value) == ("RUNNING", fresh.claim_number, None)
    (delta,) = CounterDelta.objects.using(bench.engine.database).filter(completed__gt=0)
    assert delta.completed == 1, "the lost one is not counted"


@pytest.mark.parametrize("limit", [0, 1])
def test_success_is_accepted_only_from_the_executor_of_the_claim(bench: Bench, limit: int) -> None:
    old = bench.running()
    bench.set(old.id, status="READY", claim_number=0, executor_id=None, claimed_at=None)
    other = Bench(bench.engine)
    (new,) = other.claim(queues=[old.queue_name])

    late, _ = bench.engine.commit_and_claim([success(old)], bench.claim_request(limit, queues=["none"]))
    good, _ = bench.engine.commit_and_claim([success(new)], other.claim_request(limit, queues=["none"]))

    assert (list(late.done), set(late.lost)) == ([], {old.id})
    assert good.done == {old.id: Status.SUCCESSFUL}


def test_success_ends_once(bench: Bench) -> None:
    claimed = bench.running()

    assert bench.commit(success(claimed)).done == {claimed.id: Status.SUCCESSFUL}
    assert bench.commit(success(claimed)) == CommitResult(lost=frozenset({claimed.id}))


def test_success_counts_as_beside_another_outcome(bench: Bench) -> None:
    alone, beside, failed = bench.running(), bench.running(), bench.running()
    for claimed in (alone, beside):
        bench.set(claimed.id, rank=claimed.claimed_at - timedelta(seconds=3))

    bench.commit(success(alone))
    bench.commit(success(beside), outcome(failed, Status.FAILED, attempts=1, error=ERROR))

    totals = ("completed", "failed", "retries", "dead", "attempts", "wait_bucket", "run_bucket", "run_seconds")
    deltas = CounterDelta.objects.using(bench.engine.database)

    def numbers(queue: str) -> list[Any]:
        (row,) = deltas.filter(queue_name=queue, completed__gt=0).values_list(*totals)
        return [value or 0 for value in row]

    assert numbers(alone.queue_name) == numbers(beside.queue_name)
    assert numbers(alone.queue_name)[0] == 1


def test_success_ends_despite_a_requested_cancel(bench: Bench) -> None:
    claimed = bench.running()
    bench.set(claimed.id, cancel_requested_at=bench.engine.db.now())

    assert bench.commit(success(claimed)).done == {claimed.id: Status.SUCCESSFUL}


@pytest.mark.django_db(transaction=True)
def test_success_of_a_locked_row_is_unknown_until_it_is_free(bench: Bench) -> None:
    if bench.engine.database != "default":
        pytest.skip("SQLite has one lock for all rows")
    locked, free = bench.running(), bench.running()
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT FROM jobqueue_task WHERE id = %s FOR UPDATE", [locked.id])

        answer = bench.commit(success(locked), success(free))

        assert answer == CommitResult(done={free.id: Status.SUCCESSFUL}, unknown=frozenset({locked.id}))
        other.rollback()
    finally:
        other.close()
    with transaction.atomic():
        assert bench.commit(success(locked)).done == {locked.id: Status.SUCCESSFUL}


def test_successes_with_large_results_take_the_statement_without_a_limit(
    bench: Bench, is_own_statement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.engine.postgres.commit.MAX_RESULTS_CHARS", 10)
    claimed, other = bench.running(), bench.running()

    with CaptureQueriesContext(connection) as queries:
        bench.commit(success(claimed, return_value='"123456"'), success(other, return_value='"123456"'))

    assert bench.row(claimed.id).return_value == bench.row(other.id).return_value == "123456"
    assert not any("jsonb_object_agg" in query["sql"] for query in queries.captured_queries)
