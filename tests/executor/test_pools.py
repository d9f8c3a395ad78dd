"""Pools: long tasks of one kind delay no task of the other, and no more is claimed than starts soon."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.engine import engine_for
from jobqueue.executor.claim_policy import ClaimPolicy
from jobqueue.executor.pools.base import MAX_PREFETCH, Pool, PoolContext
from jobqueue.executor.pools.event_loop import AsyncPool
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.models import Task
from jobqueue.values.records import ClaimedBatch
from jobqueue.values.states import PoolName, Status
from tests.executor import tasks
from tests.executor.harness import (
    Start,
    gates,
    in_line,
    make_running,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
    wait_for_turns,
)
from tests.factories import TaskFactory
from tests.waiting import wait_until


class IdlePool(Pool):
    """A pool whose tasks the test starts and ends."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots, PoolContext(on_completed=print, on_deadline=print, on_failure=print))

    def run(self, seconds: float, now: list[float]) -> None:
        """Run one task for so long."""
        self.submit([make_running()])
        task = self._take()
        assert task is not None
        now[0] += seconds
        assert self._take_after(task) is None

    def _work(self) -> None: ...

    def close(self, timeout_seconds: float) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "count"), [(0.001, 200), (0.01, 20), (0.05, 4), (0.06, 0), (10.0, 0), (0.0, MAX_PREFETCH)]
)
def test_pool_claims_ahead_what_starts_soon(monkeypatch: pytest.MonkeyPatch, seconds: float, count: int) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pool = IdlePool(2)
    assert pool.capacity() == 2, "nothing is known yet"
    for _ in range(10):
        pool.run(seconds, now)

    assert pool.capacity() - 2 == pytest.approx(count, abs=1)
    pool.submit([make_running(), make_running()])
    assert pool._take()
    assert pool._take()
    now[0] += 0.2
    assert pool.capacity() == 0, "both slots are busy for long"


@pytest.mark.slow
@on_both_databases
@pytest.mark.parametrize(("long", "short"), [(tasks.wait_at, tasks.add_later), (tasks.wait_later, tasks.add)])
def test_pool_full_of_long_tasks_delays_no_task_of_the_other(start: Start, long: Any, short: Any, backend: str) -> None:
    long.using(backend=backend).enqueue_many([(("long",), {})] * 10)
    start(threads=2, async_slots=2, backend=backend)
    gates["long"].wait_for(2)

    for number in range(5):
        wait_for_status(short.using(backend=backend).enqueue(number), Status.SUCCESSFUL)


@on_postgresql
def test_backlog_of_the_other_pool_delays_no_task(start: Start) -> None:
    tasks.wait_at.using(priority=10).enqueue_many([(("long", number), {}) for number in range(2000)])
    tasks.add_later.enqueue_many([((number,), {}) for number in range(200)])

    start(threads=2, poll_interval=600.0)

    wait_until(lambda: Task.objects.successful().count() == 200, "the end of all async tasks")


@on_postgresql
def test_backlog_is_worked_off_without_polls(start: Start) -> None:
    tasks.wait_at.using(priority=1).enqueue_many([(("first",), {})] * 2)
    tasks.add.enqueue_many([((number,), {}) for number in range(500)])
    running = start(threads=2, poll_interval=600.0)
    gates["first"].wait_for(2)
    wait_for_turns(running)

    gates["first"].open()

    wait_until(lambda: running.loop.outcomes.counts.finished == 502)


@on_postgresql
def test_no_more_long_tasks_are_claimed_than_start_at_once(start: Start) -> None:
    long = tasks.wait_at.enqueue_many([(("long",), {})] * 10)
    later = tasks.wait_later.enqueue_many([(("long",), {})] * 10)
    running = start(threads=3, async_slots=4, poll_interval=0.05)
    gates["long"].wait_for(7)
    wait_for_turns(running)

    assert sorted(row_of(result).claim_number for result in long) == [0] * 7 + [1] * 3
    assert sorted(row_of(result).claim_number for result in later) == [0] * 6 + [1] * 4


@on_postgresql
def test_task_that_waits_too_long_for_a_slot_is_released(start: Start) -> None:
    running, result = in_line(start)
    rank = row_of(result).rank

    row = wait_for_status(result, Status.READY)

    assert (row.rank, row.attempts, row.worker_ids, row.executor_id) == (rank, 0, [], None)
    wait_for_turns(running)  # its slot is known to be busy now: this executor does not claim it again
    assert row_of(result).claim_number == 1
    gates["in line"].open()
    gates["long"].open()
    assert wait_for_status(result, Status.SUCCESSFUL).claim_number == 2


@on_postgresql
def test_short_task_with_an_idle_thread_skips_a_long_one(start: Start) -> None:
    tasks.add.enqueue_many([((number,), {}) for number in range(400)])
    running = start(threads=3)
    wait_until(lambda: running.loop.outcomes.counts.finished == 400)

    tasks.wait_at.using(priority=1).enqueue_many([(("long",), {})] * 2)
    short = tasks.add.enqueue_many([((number,), {}) for number in range(50)])
    gates["long"].wait_for(2)

    for result in short:
        wait_for_status(result, Status.SUCCESSFUL)


# --- the stored pool


@on_both_databases
@pytest.mark.parametrize(("body", "pool"), [(tasks.add, PoolName.THREADS), (tasks.add_later, PoolName.ASYNC)])
def test_pool_is_stored_with_the_task(backend: str, body: Any, pool: PoolName) -> None:
    assert row_of(body.using(backend=backend).enqueue(1)).pool == pool


@on_both_databases
@pytest.mark.parametrize(
    ("body", "stored", "right"),
    [(tasks.add_later, PoolName.THREADS, PoolName.ASYNC), (tasks.add, PoolName.ASYNC, PoolName.THREADS)],
)
def test_tasks_stored_with_the_wrong_pool_run_in_the_right_one(
    start: Start, backend: str, body: Any, stored: PoolName, right: PoolName
) -> None:
    for number in range(20):
        TaskFactory.create(using=backend, backend=backend, task_type=body.task_type, args=[number], pool=stored)

    start(threads=2, async_slots=2, backend=backend)

    rows = Task.objects.using(backend)
    wait_until(lambda: rows.successful().count() == 20)
    assert set(rows.values_list("pool", flat=True)) == {right}


@on_postgresql
def test_wrongly_stored_tasks_are_claimed_once_beyond_the_room(start: Start) -> None:
    """Their pool is corrected, so that the executor does not claim and release them repeatedly."""
    for _ in range(30):
        TaskFactory.create(task_type=tasks.wait_later.task_type, args=["long"], pool=PoolName.THREADS)

    running = start(threads=4, async_slots=2, poll_interval=0.05)
    gates["long"].wait_for(2)
    wait_until(lambda: not Task.objects.filter(pool=PoolName.THREADS).exists())

    wait_until(lambda: Task.objects.running().count() == 2, "the release of those that do not fit")
    wait_for_turns(running)
    assert Task.objects.running().count() == 2
    assert max(Task.objects.values_list("claim_number", flat=True)) == 1


@on_postgresql
def test_async_task_created_by_sql_runs(start: Start) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT jobqueue_create_task(NULL, %s, args => '[1]')", [tasks.add_later.task_type])

    start()

    wait_until(lambda: Task.objects.successful().exists())


def test_event_loop_that_has_ended_blocks_nothing() -> None:
    """Probes and the last heartbeat may ask after its end."""
    pool = AsyncPool(2, PoolContext(on_completed=print, on_deadline=print, on_failure=print))
    assert pool.close(30.0)

    assert pool.blocked(0.0) is None


@on_postgresql
def test_claim_of_a_notified_task_waits_for_no_other_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which queues are in use and limited is read after the claim. If that has changed, another claim follows."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    engine, executor_id = engine_for("default"), uuid4()
    pools = {PoolName.THREADS: IdlePool(1)}
    policy = ClaimPolicy(engine, ExecutorSettings(), executor_id, pools, list)
    first = policy.request(1, with_commit=False)
    policy.claimed(first, ClaimedBatch(), now[0])
    now[0] += 60.0
    TaskFactory.create(queue_name="new")
    policy.on_notification("mail")

    with CaptureQueriesContext(connection) as before_claim:
        request = policy.request(1, with_commit=False)
    assert (list(request.queues), len(before_claim)) == (["mail"], 0)
    now[0] += 0.1
    policy.claimed(request, ClaimedBatch(), now[0])
    with CaptureQueriesContext(connection) as after_claim:
        policy.refresh()
    assert len(after_claim) == 2

    assert list(policy.request(1, with_commit=False).queues) == ["mail", "new"]
    policy.claimed(request, ClaimedBatch(), now[0] + 0.1)
    assert policy.request(1, with_commit=False).is_empty, "nothing is due until the next poll"
