"""The loop rests without work, and loses no task under load."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from django.db import connection, transaction

from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import (
    Burst,
    Running,
    Start,
    gates,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
)
from tests.factories import TaskFactory
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = on_postgresql


def turns_of(running: Running, seconds: float = 0.8) -> float:
    """Count the turns of the loop in one second."""
    before, began_at = running.loop.turns, time.monotonic()
    threading.Event().wait(seconds)
    return (running.loop.turns - before) / (time.monotonic() - began_at)


MAX_TURNS = 10  # a second: maintenance, polls, and some slack


def test_idle_loop_rests(start: Start) -> None:
    running = start(poll_interval=0.5)

    assert turns_of(running) < MAX_TURNS
    tasks.add.enqueue(1)
    wait_until(lambda: running.loop.outcomes.counts.finished == 1)
    assert turns_of(running) < MAX_TURNS


def test_loop_rests_while_all_slots_are_busy(start: Start) -> None:
    tasks.wait_at.enqueue_many([(("full",), {})] * 10)
    running = start(threads=2, async_slots=1)
    gates["full"].wait_for(2)

    assert turns_of(running) < MAX_TURNS


def test_loop_rests_while_an_isolated_task_waits(start: Start) -> None:
    tasks.wait_at.enqueue("long")
    running = start()
    gates["long"].wait_for()
    TaskFactory.create(task_type=tasks.add.task_type, args=[1], executor_losses=2)
    tasks.add.enqueue_many([((number,), {}) for number in range(10)])
    wait_until(lambda: running.loop.claims.isolation.is_waiting)

    assert turns_of(running) < MAX_TURNS


def test_loop_rests_while_a_due_row_is_locked(start: Start) -> None:
    result = tasks.add.using(run_after=timedelta(seconds=0.3)).enqueue(1)
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=result.id)
        running = start()
        threading.Event().wait(0.5)

        assert turns_of(running) < 3 * MAX_TURNS  # it looks again every 50 ms
    wait_for_status(result, Status.SUCCESSFUL)


def test_loop_rests_while_it_is_paused(start: Start) -> None:
    running = start()
    running.loop.set_paused(True)
    wait_until(lambda: running.loop.is_paused, "the end of a claim that is under way")
    tasks.add.enqueue_many([((number,), {}) for number in range(10)])

    assert turns_of(running) < MAX_TURNS
    assert Task.objects.ready().count() == 10


def test_a_thousand_tasks_of_different_lengths_all_end(burst: Burst) -> None:
    tasks.sleep.enqueue_many([((0.05 if number % 10 == 0 else 0.0,), {}) for number in range(1000)])

    running = burst(threads=8)

    assert Task.objects.successful().count() == 1000
    assert set(Task.objects.values_list("claim_number", flat=True)) <= {1, 2}
    assert running.loop.outcomes.counts.finished == 1000


def test_notification_is_followed_at_once(start: Start) -> None:
    running = start(poll_interval=3600.0)
    wait_until(lambda: running.process.listener is not None and running.process.listener.is_listening)

    for number in range(20):
        result = tasks.add.enqueue(number)
        wait_for_status(result, Status.SUCCESSFUL)


def test_no_notification_is_lost_under_load(start: Start) -> None:
    """Threads enqueue while the loop claims. No task waits for the next poll."""
    running = start(poll_interval=3600.0, threads=4)
    wait_until(lambda: running.process.listener is not None and running.process.listener.is_listening)

    def enqueue() -> None:
        try:
            for number in range(50):
                tasks.add.using(queue_name=f"queue-{number % 5}").enqueue(number)
        finally:
            connection.close()

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)

    wait_until(lambda: Task.objects.successful().count() == 200, "the end of all")


@on_both_databases
def test_polling_finds_tasks_without_notifications(start: Start, backend: str) -> None:
    start(backend=backend, poll_interval=0.05)
    TaskFactory.create(using=backend, backend=backend, task_type=tasks.add.task_type, args=[1])

    wait_until(lambda: Task.objects.using(backend).successful().exists())


def test_only_the_queues_asked_for_are_served(burst: Burst) -> None:
    served = [tasks.add.using(queue_name=name).enqueue(1) for name in ("a", "b")]
    other = tasks.add.using(queue_name="c").enqueue(1)

    burst(queues=("a", "b"))

    assert {row_of(result).status for result in served} == {Status.SUCCESSFUL}
    assert row_of(other).status == Status.READY


def test_a_queue_that_is_new_is_served(start: Start) -> None:
    start(poll_interval=3600.0)

    wait_for_status(tasks.add.using(queue_name="brand new").enqueue(1), Status.SUCCESSFUL)


def test_better_ranks_run_first(burst: Burst) -> None:
    calls = [(priority, tasks.note.using(priority=priority)) for priority in (0, 5, -5, 100, 50, -100, 1)]
    for priority, task in calls:
        task.enqueue("order", priority)

    burst(threads=1)

    assert gates["order"].arrived == sorted((priority for priority, _ in calls), reverse=True)
