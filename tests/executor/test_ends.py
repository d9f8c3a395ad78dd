"""When an executor ends by itself: --burst, --max-tasks and --max-memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobqueue import api
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Burst, Start, gates, on_both_databases, on_postgresql, row_of, wait_for_status
from tests.factories import ExecutorFactory, TaskFactory
from tests.waiting import wait_until

pytestmark = on_postgresql


# --- burst


@on_both_databases
def test_a_burst_with_nothing_to_do_ends(burst: Burst, backend: str) -> None:
    assert burst(backend=backend).exit_code == 0


@on_both_databases
def test_a_burst_runs_what_its_tasks_enqueue(burst: Burst, backend: str) -> None:
    tasks.enqueue_another.using(backend=backend).enqueue(backend, 3)

    burst(backend=backend)

    assert Task.objects.using(backend).successful().count() == 4


@on_both_databases
def test_a_burst_waits_for_what_is_due_within_a_second(burst: Burst, backend: str) -> None:
    result = tasks.add.using(backend=backend, run_after=timedelta(seconds=0.5)).enqueue(1)

    burst(backend=backend)

    assert row_of(result).status == Status.SUCCESSFUL


@on_both_databases
def test_a_burst_leaves_what_is_due_later(burst: Burst, backend: str) -> None:
    later = tasks.add.using(backend=backend, run_after=timedelta(hours=1)).enqueue(1)
    retried = tasks.retry_much_later.using(backend=backend).enqueue()

    burst(backend=backend)

    assert row_of(later).status == row_of(retried).status == Status.SCHEDULED
    assert row_of(retried).attempts == 1


@on_both_databases
def test_a_burst_leaves_paused_queues_alone(burst: Burst, backend: str) -> None:
    api.pause("paused", backend=backend)
    paused = tasks.add.using(backend=backend, queue_name="paused").enqueue(1)
    soon = tasks.add.using(backend=backend, queue_name="paused", run_after=timedelta(seconds=0.5)).enqueue(1)
    other = tasks.add.using(backend=backend).enqueue(1)

    burst(backend=backend)

    assert row_of(paused).status == Status.READY
    assert row_of(soon).status in (Status.READY, Status.SCHEDULED)
    assert row_of(other).status == Status.SUCCESSFUL


def test_a_burst_of_a_paused_queue_ends(burst: Burst) -> None:
    api.pause("paused")
    tasks.add.using(queue_name="paused").enqueue(1)

    burst(queues=("paused",))


@on_both_databases
def test_a_burst_leaves_tasks_that_it_does_not_know(burst: Burst, backend: str) -> None:
    TaskFactory.create(using=backend, backend=backend, task_type="shop.tasks.not_deployed_yet")

    burst(backend=backend)

    assert Task.objects.using(backend).get().status == Status.AWAITING_CODE


def test_a_burst_waits_for_what_runs_elsewhere(start: Start) -> None:
    elsewhere = ExecutorFactory.create()
    row = TaskFactory.create(running=True, executor_id=elsewhere.pk)
    running = start(burst=True)
    wait_until(lambda: running.loop.turns > 5)
    assert running.exit_code is None

    Task.objects.filter(pk=row.pk).update(status=Status.READY, executor_id=None, claimed_at=None, task_type="gone")

    running.join()


def test_burst_ends_after_all_callbacks(burst: Burst, slow_receiver: list[Any]) -> None:
    tasks.add.enqueue_many([((number,), {}) for number in range(5)])

    burst()

    assert len(slow_receiver) == 5


# --- max tasks


@on_both_databases
@pytest.mark.parametrize("body", [tasks.add, tasks.add_later])
def test_so_many_tasks_are_run_and_no_more(start: Start, body: Any, backend: str) -> None:
    body.using(backend=backend).enqueue_many([((number,), {}) for number in range(30)])

    running = start(backend=backend, max_tasks=7, threads=3)
    running.join()

    rows = Task.objects.using(backend)
    assert (rows.successful().count(), rows.ready().count()) == (7, 23)
    assert rows.filter(claim_number=0).count() == 23
    assert running.loop.outcomes.counts.finished == 7


def test_tasks_that_were_handed_back_do_not_count(start: Start) -> None:
    """Both threads are busy. A task that waits for a second is released, and claimed again later."""
    short = tasks.add.enqueue_many([((number,), {}) for number in range(200)])
    long = tasks.wait_at.using(priority=1).enqueue_many([(("long",), {})] * 2)
    running = start(max_tasks=100, threads=2)
    gates["long"].wait_for(2)
    gates["long"].open()
    running.join()

    ended = [row_of(result).status for result in (*short, *long)]
    assert ended.count(Status.SUCCESSFUL) == 100
    assert ended.count(Status.READY) == 102


def test_retries_count_as_tasks(start: Start) -> None:
    tasks.fail_by_default.enqueue()

    running = start(max_tasks=2)
    running.join()

    assert Task.objects.get().attempts == 2


# --- max memory


def test_process_above_its_memory_waits_for_its_task_and_ends(start: Start) -> None:
    running = start(max_memory=1, threads=1)
    long = tasks.wait_at.enqueue("long")
    gates["long"].wait_for(1)
    wait_until(lambda: running.loop.stop.is_last, "the check of the memory")
    later = tasks.add.enqueue(1)
    gates["long"].open()

    assert running.join() == 0
    assert (row_of(long).status, row_of(later).status) == (Status.SUCCESSFUL, Status.READY)


def test_process_below_its_memory_goes_on(start: Start) -> None:
    running = start(max_memory=100_000)

    wait_for_status(tasks.add.enqueue(1), Status.SUCCESSFUL)

    assert not running.loop.stop.is_last
