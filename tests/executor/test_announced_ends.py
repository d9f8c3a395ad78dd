"""The ends that an executor brings about without an attempt are announced, as those of attempts are."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import jobqueue
from jobqueue import Actor, Done, PollContext, Spawn
from jobqueue.conf.compat import task_finished
from jobqueue.declarations.schedules import schedule
from jobqueue.models import Task
from jobqueue.operations.bulk import actor as bulk_actor
from jobqueue.operations.bulk.actions import CANCEL
from jobqueue.operations.bulk.target import Target
from jobqueue.operations.list.selection import Selection
from jobqueue.schedules.expressions import Every
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Start, connected, gates, in_line, on_both_databases, on_postgresql
from tests.factories import ExecutorFactory, TaskFactory, ago
from tests.fixtures import Options
from tests.waiting import wait_until

TOMORROW = timedelta(days=1)
ADD = {"task_type": tasks.add.task_type, "args": [1]}


@on_both_databases
@pytest.mark.parametrize(
    ("columns", "status"),
    [({"executor_losses": 2}, Status.FAILED), ({"cancel_requested_at": ago(60)}, Status.CANCELLED)],
)
def test_task_that_a_rescue_ends_sends_task_finished_once(
    start: Start, options: Options, announced: list[Any], backend: str, columns: dict[str, Any], status: Status
) -> None:
    options(HEARTBEAT_TIMEOUT=1.0)
    lost = ExecutorFactory.create(using=backend, backend=backend, heartbeat=ago(3600))
    task = TaskFactory.create(using=backend, backend=backend, **ADD, running=True, executor_id=lost.pk, **columns)
    start(backend=backend, poll_interval=0.05)

    wait_until(lambda: announced)
    assert Task.objects.using(backend).get(pk=task.pk).status == status
    assert [(result.id, result.status.value) for result in announced] == [(str(task.pk), "FAILED")]


class EndsItsChildren(Actor):
    """Spawns a task for later, and ends it."""

    async def poll(self, context: PollContext[Any]) -> Any:
        if context.polls == 0:
            return Spawn(tasks.add.using(run_after=TOMORROW), 1)
        return Done(cancel_children=True)


@on_both_databases
def test_children_that_end_with_their_parent_send_task_finished(start: Start, backend: str) -> None:
    seen: list[tuple[str, str]] = []

    def receive(task_result: Any, **_: Any) -> None:
        seen.append((task_result.id, threading.current_thread().name))

    with connected(receive, task_finished):
        parent = EndsItsChildren.using(backend=backend).enqueue()
        start(backend=backend, poll_interval=0.05)
        wait_until(lambda: len(seen) == 2)

    child = Task.objects.using(backend).get(parent_id=UUID(parent.id))
    assert child.status == Status.CANCELLED
    assert {pk for pk, _ in seen} == {parent.id, str(child.pk)}
    assert {thread for _, thread in seen} == {"jobqueue-callbacks"}  # a receiver may block, and the loop may not


@on_postgresql
@pytest.mark.usefixtures("own_schedules")
def test_task_that_a_tick_replaces_sends_task_finished(start: Start, announced: list[Any]) -> None:
    task = tasks.add.using(queue_name="unserved")
    schedule("each-second", task, Every(seconds=1), args=[1], overlap="cancel_running")
    start(queues=("default",), poll_interval=0.05)

    wait_until(lambda: announced)
    assert Task.objects.get(pk=announced[0].id).status == Status.CANCELLED


@on_postgresql
def test_bulk_cancel_sends_task_finished(start: Start, announced: list[Any]) -> None:
    rows = [TaskFactory.create(**ADD, scheduled=True) for _ in range(3)]
    bulk = bulk_actor.start(Target.of(Selection("default", {"status": "SCHEDULED"}), CANCEL))
    start(poll_interval=0.05)

    wait_until(lambda: len(announced) == 4)
    assert {result.id for result in announced} == {bulk.id, *(str(row.pk) for row in rows)}


@on_postgresql
def test_claimed_task_cancelled_before_its_start_sends_task_finished(start: Start, announced: list[Any]) -> None:
    announced.clear()
    running, result = in_line(start)
    jobqueue.cancel(result.id)
    running.process.stop()
    gates["long"].open()

    wait_until(lambda: result.id in [ended.id for ended in announced])
    assert Task.objects.get(pk=result.id).status == Status.CANCELLED
    assert [ended.id for ended in announced].count(result.id) == 1
