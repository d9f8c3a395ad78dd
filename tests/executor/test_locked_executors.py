"""A session locks an executor's row, or the table. No task of a live executor is rescued."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from jobqueue.models import Executor, Heartbeat, Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Running, Start, gates, on_postgresql, wait_for_status
from tests.factories import ExecutorFactory, TaskFactory
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = [on_postgresql, pytest.mark.slow]

TIMEOUT = 1.5
LOCKS = {
    "select for update": "SELECT FROM jobqueue_executor WHERE id = %s FOR UPDATE",
    "update": "UPDATE jobqueue_executor SET name = name WHERE id = %s",
    "delete": "DELETE FROM jobqueue_executor WHERE id = %s",
    "share of the table": "LOCK TABLE jobqueue_executor IN SHARE MODE",
}


def executors(start: Start) -> tuple[Running, Running]:
    """Start an executor that runs a task, and one that could rescue it."""
    tasks.wait_at.enqueue("held")
    victim = start(threads=1)
    gates["held"].wait_for()
    rescuer = start(threads=1, poll_interval=0.1)
    wait_until(lambda: rescuer.process._heartbeat.may_rescue, "an executor that may rescue")
    return victim, rescuer


def let_pass(seconds: float, running: Running) -> None:
    engine = running.process.engine
    until = engine.db.now() + timedelta(seconds=seconds)
    wait_until(lambda: engine.db.now() > until, f"the end of {seconds} s")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_on_its_row_costs_an_executor_nothing(
    start: Start, options: Options, caplog: pytest.LogCaptureFixture, lock: str
) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    victim, rescuer = executors(start)
    worked = tasks.add.enqueue(0)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(LOCKS[lock], [victim.process.executor_id] if "%s" in LOCKS[lock] else None)
        let_pass(3 * TIMEOUT, rescuer)
        transaction.set_rollback(lock == "delete")
    let_pass(TIMEOUT, rescuer)

    assert rescuer.process._heartbeat.may_rescue
    wait_for_status(worked, Status.SUCCESSFUL)
    held = Task.objects.get(task_type=tasks.wait_at.task_type)
    assert (held.status, held.executor_losses, held.claim_number) == (Status.RUNNING, 0, 1)
    wait_until(Heartbeat.objects.filter(pk=victim.process.executor_id, at__gt=held.started_at).exists)
    assert not [line for line in caplog.messages if line.startswith(("executor.fenced", "task.", "database."))]


def test_a_dead_executor_s_tasks_are_rescued_though_its_row_is_locked(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    running = start(threads=1, poll_interval=0.1)
    dead = ExecutorFactory.create(heartbeat=running.process.engine.db.now())
    TaskFactory.create(running=True, task_type=tasks.add.task_type, args=[1], executor_id=dead.pk)

    with transaction.atomic():
        Executor.objects.select_for_update().get(pk=dead.pk)
        wait_until(Task.objects.filter(status=Status.SUCCESSFUL, executor_losses=1).exists, "the end of its task")


@pytest.mark.parametrize(
    ("table", "mode"),
    [
        ("jobqueue_executor", "ACCESS EXCLUSIVE"),
        ("jobqueue_heartbeat", "SHARE"),
        ("jobqueue_heartbeat", "ACCESS EXCLUSIVE"),
    ],
)
def test_a_lock_on_the_table_costs_no_executor_a_task(start: Start, options: Options, table: str, mode: str) -> None:
    """No heartbeat succeeds. No executor rescues before it has sent heartbeats for a full timeout."""
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    victim, rescuer = executors(start)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {table} IN {mode} MODE")
        let_pass(2 * TIMEOUT, rescuer)
    wait_until(
        lambda: victim.process._heartbeat.reaches_database and rescuer.process._heartbeat.may_rescue,
        "all is well again",
    )
    gates.open_all()

    wait_until(Task.objects.filter(status=Status.SUCCESSFUL).exists, "the end of the task")
    assert Task.objects.get().executor_losses == 0


def test_a_lock_on_the_table_of_tasks_interrupts_no_body(
    start: Start, options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    """No session could take the tasks, and the heartbeats of their executor are written."""
    options(HEARTBEAT_TIMEOUT=3.0)
    tasks.wait_at.enqueue("held")
    running = start(threads=1)
    gates["held"].wait_for()

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE jobqueue_task IN ACCESS EXCLUSIVE MODE")
        let_pass(3 * 3.0, running)
        assert running.process._heartbeat.reaches_database
    gates.open_all()

    wait_until(Task.objects.filter(status=Status.SUCCESSFUL).exists, "the end of the task")
    row = Task.objects.get()
    assert (row.claim_number, row.executor_losses) == (1, 0)
    assert not [line for line in caplog.messages if line.startswith(("executor.fenced", "task.claim_lost"))]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) <= 1
