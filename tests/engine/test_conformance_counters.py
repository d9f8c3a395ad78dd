"""Counters, on every engine: each event is counted in its own transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from django.db.models import QuerySet

from jobqueue.models import CounterDelta, CounterPeriod
from jobqueue.models.clock import clock_to_compare
from jobqueue.values.counters import COUNTERS, EDGES, CounterTotals, bucket
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, new, outcome
from tests.factories import ago

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def counted(bench: Bench) -> CounterTotals:
    """Return the counters of the only queue and task type."""
    (counts,) = counted_all(bench)
    return counts


def counted_all(bench: Bench) -> list[CounterTotals]:
    while bench.engine.counters.aggregate_counters():
        pass
    return bench.engine.counters.counter_totals()


def numbers(bench: Bench) -> dict[str, int]:
    """Return the counters that are not 0."""
    counts = counted(bench)
    return {name: number for name in COUNTERS if (number := getattr(counts, name))}


def claimed(bench: Bench, **changes: Any) -> Any:
    bench.beat()
    bench.add(**changes)
    (task,) = bench.claim()
    return task


def test_submitted_counts_created_tasks(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new(key="a"), new(key="a"), new(), new()])
    bench.add(key="a")
    bench.add()
    assert numbers(bench) == {"submitted": 4}

    (task, *_) = bench.claim()
    bench.perform(task, spawn=[new(parent_id=task.id), new(parent_id=task.id)])
    assert counted(bench).submitted == 6


def test_batch_adds_one_delta_for_each_queue_and_task_type(bench: Bench) -> None:
    bench.engine.enqueues.enqueue(
        [new(queue_name=queue, task_type=name) for queue in "ab" for name in "xy" for _ in range(3)]
    )

    deltas = CounterDelta.objects.using(bench.engine.database).values_list("queue_name", "task_type", "submitted")
    assert set(deltas) == {("a", "x", 3), ("a", "y", 3), ("b", "x", 3), ("b", "y", 3)}
    assert len(deltas) == 4


def test_enqueue_that_is_rolled_back_is_not_counted(bench: Bench) -> None:
    with transaction.atomic(using=bench.engine.database):
        bench.add()
        transaction.set_rollback(True, using=bench.engine.database)

    assert bench.engine.counters.aggregate_counters() == 0
    assert bench.engine.counters.counter_totals() == []


def succeeded(bench: Bench) -> None:
    bench.commit(outcome(claimed(bench), worker_id="w", has_succeeded=True))


def failed(bench: Bench, status: Status) -> None:
    bench.commit(outcome(claimed(bench), status, attempts=1, worker_id="w", error=ERROR))


def failed_before_start(bench: Bench) -> None:
    """Commit a failure without a start of the body, as for an expired task."""
    bench.commit(outcome(claimed(bench), Status.FAILED, error=ERROR))


def released(bench: Bench) -> None:
    bench.commit(outcome(claimed(bench), Status.READY, keeps_rank=True))


def retried_but_cancelled(bench: Bench, **changes: Any) -> None:
    task = claimed(bench, **changes)
    bench.engine.tasks.cancel([task.id])
    bench.commit(outcome(task, Status.SCHEDULED, attempts=1, worker_id="w", error=ERROR, wake_after_seconds=1.0))


def suspended(bench: Bench) -> None:
    bench.commit(outcome(claimed(bench), Status.SUSPENDED, worker_id="w", has_succeeded=True))


def lost_to_another_claim(bench: Bench) -> None:
    task = claimed(bench)
    bench.set(task.id, claim_number=task.claim_number + 1)
    bench.commit(outcome(task, worker_id="w", has_succeeded=True))


def child_succeeded(bench: Bench) -> None:
    """Commit a child that notifies its parent, which takes several statements."""
    task = claimed(bench, parent_id=uuid4())
    bench.commit(outcome(task, worker_id="w", has_succeeded=True))


@pytest.mark.parametrize(
    ("event", "expected", "attempts"),
    [
        (succeeded, {"completed": 1}, 1),
        (child_succeeded, {"completed": 1}, 1),
        (lambda bench: failed(bench, Status.SCHEDULED), {"failed": 1, "retries": 1}, 1),
        (lambda bench: failed(bench, Status.FAILED), {"failed": 1, "dead": 1}, 1),
        (lambda bench: failed(bench, Status.CANCELLED), {}, 1),
        (retried_but_cancelled, {"failed": 1}, 1),
        (lambda bench: retried_but_cancelled(bench, parent_id=uuid4()), {"failed": 1}, 1),  # takes several statements
        (failed_before_start, {"dead": 1}, 0),
        (released, {}, 0),
        (suspended, {}, 1),
        (lost_to_another_claim, {}, 0),
    ],
)
def test_commit_counts_outcome(
    bench: Bench, event: Callable[[Bench], None], expected: dict[str, int], attempts: int
) -> None:
    event(bench)

    assert numbers(bench) == {"submitted": 1, **expected}
    assert (sum(counted(bench).waits), sum(counted(bench).runs)) == (attempts, 0)


def test_commit_adds_up_batch(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new() for _ in range(6)])
    tasks = bench.claim()
    bench.commit(
        *(outcome(task, worker_id="w", has_succeeded=True, run_seconds=0.002) for task in tasks[:3]),
        *(outcome(task, worker_id="w", has_succeeded=True, run_seconds=2.0) for task in tasks[3:5]),
        outcome(tasks[5], Status.FAILED, attempts=1, worker_id="w", error=ERROR, run_seconds=9000.0),
    )

    assert numbers(bench) == {"submitted": 6, "completed": 5, "failed": 1, "dead": 1}
    counts = counted(bench)
    assert [(EDGES[bucket - 1], count) for bucket, count in enumerate(counts.runs) if count] == [
        (0.001, 3), (1.0, 2), (3600.0, 1)
    ]  # fmt: skip
    assert counts.run_seconds == pytest.approx(9004.006)


@pytest.mark.parametrize("priority", [0, 50])
def test_wait_is_measured_from_ready_to_claim(bench: Bench, priority: int) -> None:
    pk = bench.add(priority=priority)
    bench.set(pk, rank=ago(40 + priority * bench.engine.options.aging))
    (task,) = bench.claim()
    bench.set(pk, claimed_at=ago(0))
    bench.commit(outcome(task, worker_id="w", has_succeeded=True))

    counts = counted(bench)
    assert counts.wait_seconds == pytest.approx(40, abs=5)
    assert counts.waits[bucket(40)] == 1


@pytest.mark.parametrize("seconds", [0.0, *EDGES, *(edge * 0.99 for edge in EDGES), 1e9])
def test_buckets_are_equal_in_sql_and_python(bench: Bench, seconds: float) -> None:
    bench.commit(outcome(claimed(bench), worker_id="w", has_succeeded=True, run_seconds=seconds))

    assert counted(bench).runs[bucket(seconds)] == 1


def test_rescue_counts_losses(bench: Bench) -> None:
    bench = bench.with_options(max_executor_losses=2)
    for _ in range(2):
        bench.beat()
        if not bench.engine.db.tasks.exists():
            bench.add()
        (task,) = bench.claim()
        bench.time_passes(31)
        assert [rescued.id for rescued in bench.engine.executors.rescue()] == [task.id]

    assert numbers(bench) == {"submitted": 1, "lost": 2, "dead": 1}


def test_batch_with_refused_outcome_counts_the_others(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new() for _ in range(4)])
    good, bad, *others = (outcome(task, worker_id="w", has_succeeded=True) for task in bench.claim())
    bad = outcome(bench.engine.claims.read_claimed([bad.task_id])[0], worker_id="w", return_value="{not JSON")

    assert len(bench.commit(good, bad, *others).refused) == 1
    assert numbers(bench) == {"submitted": 4, "completed": 3}


def test_second_aggregation_adds_to_first(bench: Bench) -> None:
    for total in range(1, 4):
        succeeded(bench)

        counts = counted(bench)
        assert (counts.submitted, counts.completed, sum(counts.waits)) == (total, total, total)
    assert not CounterDelta.objects.using(bench.engine.database).exists()


def test_aggregate_counters_takes_up_to_limit_and_returns_count(bench: Bench) -> None:
    for _ in range(3):
        bench.add()

    assert [bench.engine.counters.aggregate_counters(2) for _ in range(3)] == [2, 1, 0]
    assert counted(bench).submitted == 3


def periods(bench: Bench, **columns: Any) -> QuerySet[CounterPeriod]:
    rows = CounterPeriod.objects.using(bench.engine.database).order_by("length", "scope", "name", "start")
    return rows.filter(backend=bench.engine.alias, **columns)


def test_totals_outlive_pruned_periods(bench: Bench) -> None:
    succeeded(bench)
    before = counted(bench)
    bench.time_passes(2 * 86_400)
    periods(bench).update(start=clock_to_compare(after=-2 * 86_400))

    assert bench.engine.tasks.prune() == 1

    assert counted(bench) == before
    assert {row.length for row in periods(bench)} == {"hour"}


def test_hours_are_pruned_after_a_month(bench: Bench) -> None:
    succeeded(bench)
    counted(bench)
    periods(bench).update(start=clock_to_compare(after=-32 * 86_400))

    bench.engine.tasks.prune()

    assert not periods(bench).exists()


def test_periods_have_rows_of_backend_queues_and_task_types(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new(queue_name=queue, task_type=name) for queue in "ab" for name in "xy"])
    counted_all(bench)

    for length in ("hour", "minute"):
        rows = periods(bench, length=length).values_list("scope", "name", "submitted")
        assert list(rows) == [
            ("backend", "", 4),
            ("queue", "a", 2),
            ("queue", "b", 2),
            ("task", "x", 2),
            ("task", "y", 2),
        ]


def test_periods_count_attempts_and_their_times(bench: Bench) -> None:
    failed(bench, Status.SCHEDULED)
    succeeded(bench)
    total = counted(bench)

    for row in periods(bench):
        assert (row.attempts, row.completed, row.failed, row.retries, row.dead) == (2, 1, 1, 1, 0)
        assert (row.wait_seconds, row.run_seconds) == (total.wait_seconds, total.run_seconds)
        assert (row.waits, row.runs) == (total.waits, total.runs)


def test_each_minute_and_each_hour_has_its_own_row(bench: Bench) -> None:
    noon = bench.engine.db.now().replace(hour=12, minute=0, second=0, microsecond=0)
    deltas = CounterDelta.objects.using(bench.engine.database)
    for seconds in (301, 359, 420, 3600):
        bench.add()
        deltas.filter(pk=deltas.latest("pk").pk).update(at=noon + timedelta(seconds=seconds))
    counted(bench)

    for length, expected in {
        "minute": [(timedelta(minutes=5), 2), (timedelta(minutes=7), 1), (timedelta(hours=1), 1)],
        "hour": [(timedelta(0), 3), (timedelta(hours=1), 1)],
    }.items():
        rows = periods(bench, length=length, scope="backend").values_list("start", "submitted")
        assert [(start - noon, number) for start, number in rows] == expected


def test_aggregate_counters_counts_each_backend_separately(bench: Bench) -> None:
    other = Bench(type(bench.engine)("other", bench.engine.options))
    other.add()
    bench.add()
    bench.add()

    assert counted(bench).submitted == 2
    assert [counts.submitted for counts in other.engine.counters.counter_totals()] == [1]
