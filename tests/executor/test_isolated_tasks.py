"""Tasks that lost executors run alone in their process."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.executor import isolation
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import (
    Running,
    Start,
    gates,
    in_line,
    on_both_databases,
    on_postgresql,
    wait_for_turns,
)
from tests.factories import TaskFactory
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = on_postgresql


def add_isolated(body: Any, *args: Any, backend: str = "default") -> Task:
    return TaskFactory.create(
        using=backend, backend=backend, task_type=body.task_type, args=list(args), executor_losses=2, max_attempts=1
    )


@on_both_databases
@pytest.mark.parametrize("body", [tasks.wait_at, tasks.wait_later])
def test_isolated_task_runs_alone_and_others_continue_after_it(start: Start, body: Any, backend: str) -> None:
    isolated = add_isolated(body, "isolated", backend=backend)
    running = start(backend=backend, threads=4, poll_interval=0.05)
    gates["isolated"].wait_for()

    others = tasks.add.using(backend=backend).enqueue_many([((number,), {}) for number in range(20)])
    others += tasks.add_later.using(backend=backend).enqueue_many([((number,), {}) for number in range(20)])
    wait_for_turns(running)

    assert list(running.running_tasks) == [isolated.pk]
    assert Task.objects.using(backend).ready().count() == 40
    gates["isolated"].open()
    wait_until(lambda: Task.objects.using(backend).successful().count() == 41)


def test_isolated_task_waits_for_running_tasks(start: Start) -> None:
    tasks.wait_at.enqueue("running")
    running = start(threads=4, poll_interval=0.05)
    gates["running"].wait_for()
    isolated = add_isolated(tasks.wait_at, "isolated")
    wait_until(lambda: running.loop.claims.isolation.is_waiting)

    tasks.add.enqueue_many([((number,), {}) for number in range(20)])
    wait_for_turns(running)
    assert (len(running.running_tasks), Task.objects.successful().count()) == (1, 0)

    gates["running"].open()
    gates["isolated"].wait_for()
    assert list(running.running_tasks) == [isolated.pk]
    gates["isolated"].open()
    wait_until(lambda: Task.objects.successful().count() == 22)


def test_buffered_tasks_are_released_for_an_isolated_task(start: Start) -> None:
    running, result = in_line(start)
    add_isolated(tasks.add, 1)

    wait_until(lambda: Task.objects.filter(pk=result.id, status=Status.READY).exists())

    wait_until(lambda: len(running.running_tasks) == 1)
    assert gates["in line"].arrived == []


def test_many_isolated_tasks_run_in_one_series(start: Start) -> None:
    for _ in range(60):
        add_isolated(tasks.add, 1)

    start(poll_interval=3600.0)  # the end of one brings the next

    wait_until(lambda: Task.objects.successful().count() == 60)


def beside_a_long_task(start: Start) -> tuple[Running, Task]:
    """Start a process that waits for the end of a long task before it claims an isolated one."""
    tasks.wait_at.enqueue("long")
    running = start(threads=4)
    gates["long"].wait_for()
    isolated = add_isolated(tasks.add, 1)
    wait_until(lambda: running.loop.claims.isolation.is_waiting)
    return running, isolated


def test_patience_with_long_tasks_has_an_end(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=0.6)
    _, isolated = beside_a_long_task(start)

    tasks.add.enqueue_many([((number,), {}) for number in range(20)])

    wait_until(lambda: Task.objects.successful().count() == 20)
    assert Task.objects.get(pk=isolated.pk).status == Status.READY


def test_process_that_gave_up_claims_the_isolated_task_when_idle(
    start: Start, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "GIVE_UP_TIMEOUTS", 1000)
    options(HEARTBEAT_TIMEOUT=0.6)
    running, isolated = beside_a_long_task(start)
    wait_until(lambda: not running.loop.claims.isolation.is_waiting, "the end of its patience")
    assert Task.objects.get(pk=isolated.pk).status == Status.READY

    gates["long"].open()

    wait_until(lambda: Task.objects.successful().count() == 2)


def test_long_isolated_task_has_company_after_the_timeout(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=0.6)
    add_isolated(tasks.wait_at, "long")
    start(threads=4)
    gates["long"].wait_for()

    tasks.add.enqueue_many([((number,), {}) for number in range(20)])

    wait_until(lambda: Task.objects.successful().count() == 20)
    assert Task.objects.running().count() == 1


def test_isolated_task_claimed_elsewhere_is_not_waited_for(start: Start) -> None:
    _, isolated = beside_a_long_task(start)
    Task.objects.filter(pk=isolated.pk).update(status=Status.SUCCESSFUL)

    tasks.add.enqueue_many([((number,), {}) for number in range(20)])

    wait_until(lambda: Task.objects.successful().count() == 21)


def test_task_that_lost_one_executor_is_not_isolated(start: Start) -> None:
    TaskFactory.create(task_type=tasks.wait_at.task_type, args=["same"], executor_losses=1)
    tasks.wait_at.enqueue("same")

    start(threads=2)

    gates["same"].wait_for(2)
