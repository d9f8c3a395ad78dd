"""A rate counts starts of bodies: no window has too many of them, and a claim that never started takes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from jobqueue.executor import claims
from jobqueue.models import RateStart, Task
from jobqueue.values.states import Status
from tests.executor import limited_tasks, tasks
from tests.executor.harness import Running, Start, gates, on_both_databases, on_postgresql, row_of, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql

LIMIT, PERIOD = 3, 0.5  # of limited_tasks.THREE


def assert_rate_was_kept(gate: str, count: int) -> None:
    starts = sorted(gates[gate].wait_for(count))
    assert len(starts) == count
    gaps = [later - first for first, later in zip(starts, starts[LIMIT:], strict=False)]
    assert min(gaps) >= PERIOD, gaps


def claims_ahead(executor: Running) -> None:
    """Let the pools claim ahead, as after many short tasks."""
    for pool in executor.loop.pools.values():
        pool._mean_seconds = 0.001


def enqueue_behind_a_slow_one(slow: Any, *rated: Any) -> Any:
    """Enqueue at once, so that one claim takes the slow task and those behind it."""
    with transaction.atomic(using="default"):
        result = slow.using(priority=50).enqueue("slow")
        for call in rated:
            call()
    gates["slow"].wait_for()
    return result


def seconds_since_claim(result: Any) -> float:
    claimed_at = row_of(result).claimed_at
    return 0.0 if claimed_at is None else (loop_now() - claimed_at).total_seconds()


def loop_now() -> Any:
    from jobqueue.engine import engine_for

    return engine_for("default").db.now()


@pytest.mark.parametrize(
    ("body", "slow"),
    [
        (limited_tasks.note_start, tasks.wait_at),
        (limited_tasks.note_start_atomically, tasks.wait_at),
        (limited_tasks.note_start_later, tasks.wait_later),
    ],
    ids=["threads", "atomic", "async"],
)
def test_bodies_that_waited_in_a_buffer_keep_to_the_rate(start: Start, body: Any, slow: Any) -> None:
    executor = start(threads=1, async_slots=1)
    claims_ahead(executor)
    slowly = enqueue_behind_a_slow_one(slow, lambda: body.enqueue_many([(("gate",), {}) for _ in range(9)]))
    wait_until(lambda: seconds_since_claim(slowly) > 0.8 * PERIOD, "a wait in the buffer")

    gates["slow"].open()

    assert_rate_was_kept("gate", 9)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("executors", [1, 2])
def test_bodies_of_all_executors_together_keep_to_the_rate(start: Start, executors: int, threads: int) -> None:
    limited_tasks.note_start.enqueue_many([(("gate",), {}) for _ in range(6)])
    limited_tasks.note_start_later.using(rate=limited_tasks.THREE).enqueue_many([(("other",), {}) for _ in range(6)])
    for _ in range(executors):
        start(threads=threads, async_slots=threads)

    assert_rate_was_kept("gate", 6)
    assert_rate_was_kept("other", 6)


@pytest.mark.parametrize("body", [limited_tasks.note_start_and_fail, limited_tasks.NotesStarts])
def test_each_attempt_and_each_poll_keeps_to_the_rate(start: Start, body: Any) -> None:
    for _ in range(3):
        body.enqueue("gate")
    start(threads=4)

    assert_rate_was_kept("gate", 9)


def test_bodies_keep_to_the_rate_while_executors_are_replaced(start: Start) -> None:
    limited_tasks.note_start.enqueue_many([(("gate",), {}) for _ in range(9)])
    for seen in (2, 4, 6):
        executor = start(threads=2)
        gates["gate"].wait_for(seen)
        executor.stop()
    start(threads=2)

    assert_rate_was_kept("gate", 9)


@pytest.mark.parametrize(
    "body", [limited_tasks.start_and_wait, limited_tasks.start_and_wait_later], ids=["threads", "async"]
)
@on_both_databases
def test_long_body_counts_from_its_start(start: Start, body: Any, backend: str) -> None:
    """Not until its end: the next ones start while it runs."""
    body.using(backend=backend).enqueue_many([(("gate",), {}) for _ in range(3)])
    start(threads=3, async_slots=3, backend=backend)

    gates["gate"].wait_for(3)

    assert RateStart.objects.using(backend).count() >= 2
    assert Task.objects.using(backend).running().count() == 3


def test_task_evicted_from_a_buffer_starts_within_an_hourly_rate(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "EVICT_SECONDS", 0.05)
    executor = start(threads=1)
    claims_ahead(executor)
    results: list[Any] = []
    enqueue_behind_a_slow_one(tasks.wait_at, lambda: results.append(limited_tasks.start_once.enqueue("gate")))
    wait_until(lambda: row_of(results[0]).claim_number > 0 and row_of(results[0]).status != Status.RUNNING)

    gates["slow"].open()

    wait_for_status(results[0], Status.SUCCESSFUL)


def test_task_released_by_a_stop_starts_within_an_hourly_rate(start: Start) -> None:
    executor = start(threads=1, shutdown_timeout=0.0)
    claims_ahead(executor)
    results: list[Any] = []
    enqueue_behind_a_slow_one(tasks.wait_at, lambda: results.append(limited_tasks.start_once.enqueue("gate")))
    wait_for_status(results[0], Status.RUNNING)
    gates["slow"].open()
    executor.stop()

    start(threads=1)

    wait_for_status(results[0], Status.SUCCESSFUL)
    assert RateStart.objects.count() == 1


def test_body_interrupted_by_a_stop_has_started(start: Start) -> None:
    result = limited_tasks.start_and_wait.using(rate=limited_tasks.ONE_AN_HOUR).enqueue("gate")
    executor = start(threads=1, shutdown_timeout=0.0)
    gates["gate"].wait_for()
    executor.stop()

    assert row_of(result).status == Status.BLOCKED
    assert RateStart.objects.count() == 1


def test_task_that_was_claimed_long_ago_is_released_unstarted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was frozen, and another executor may have rescued it."""
    from jobqueue.executor.running import task_runner

    late = iter([True])
    monkeypatch.setattr(task_runner, "is_late", lambda running: next(late, False))
    result = limited_tasks.start_once.enqueue("gate")
    start(threads=1)

    assert wait_for_status(result, Status.SUCCESSFUL).claim_number == 2
    assert RateStart.objects.count() == 1
