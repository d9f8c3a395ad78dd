"""Tasks that ignore an interruption, and threads of the executor that fail."""

from __future__ import annotations

import signal

import pytest

from jobqueue.exceptions import ExecutorLost
from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end, wait_for_ended
from tests.acceptance.tasks import block_loop, break_thread, compute, doze, freeze, hang, work, work_later
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

STUCK_SECONDS = 600.0
GRACE = ("--shutdown-timeout", "2s")


def test_stuck_task_replaces_its_process_and_harms_no_other_task(fleet: Fleet) -> None:
    result = hang.using(timeout=0.5).enqueue(STUCK_SECONDS)
    # It ends after the body counts as stuck (2.5 s) and before all tasks are interrupted (4.5 s).
    neighbour = compute.enqueue(3.5)
    process = fleet.start(*GRACE, "--threads", "3", heartbeat_timeout=3)
    first = process.row
    process.output.wait_for(r"executor\.stuck task=\S+ id=" + result.id)
    assert Task.objects.get(pk=result.id).status == "RUNNING"
    process.output.wait_for("^ready", count=2)
    assert process.is_alive
    wait_until(lambda: process.row.pk != first.pk, "the same process with a new program")
    row = Task.objects.get(pk=neighbour.id)
    assert (row.status, row.claim_number) == ("SUCCESSFUL", 1)
    # The claim stays until the rescue, so the task starts again only after the timeout.
    wait_until(lambda: Effect.objects.filter(kind="started").count() == 2, "the rescue")
    row = Task.objects.get(pk=result.id)
    assert (row.executor_losses, row.attempts, row.claim_number) == (1, 0, 2)
    again = Effect.objects.latest("at").at
    first.refresh_from_db()
    assert (again - first.heartbeat.at).total_seconds() > 3
    assert process.stop() == 0


def test_stuck_task_fails_after_three_losses(fleet: Fleet) -> None:
    result = doze.using(timeout=0.2).enqueue(STUCK_SECONDS)
    supervisor = fleet.start("--shutdown-timeout", "0s", "--processes", "2", heartbeat_timeout=1)
    compute.enqueue_many([((0.05,), {}) for _ in range(40)])
    assert wait_for_end() == {"SUCCESSFUL": 40, "FAILED": 1}
    row = Task.objects.get(pk=result.id)
    assert row.executor_losses == 3
    assert {error["exception_class_path"] for error in row.errors} == {
        f"{ExecutorLost.__module__}.{ExecutorLost.__qualname__}"
    }
    assert not Task.objects.filter(executor_losses__gt=0).exclude(pk=result.id).exists()
    assert supervisor.stop() == 0


def test_task_that_freezes_its_process_takes_one_with_neighbours(fleet: Fleet) -> None:
    """The supervisor replaces the process, and the task runs alone at once. So its neighbours lose one executor."""
    result = freeze.enqueue(STUCK_SECONDS)
    neighbours = work.enqueue_many([((4.0,), {}) for _ in range(7)])
    supervisor = fleet.start("--processes", "2", "--threads", "4", heartbeat_timeout=15)

    assert wait_for_end() == {"SUCCESSFUL": 7, "FAILED": 1}

    assert Task.objects.get(pk=result.id).status == "FAILED"
    starts = {pk: Effect.objects.filter(task_id=pk, kind="started") for pk in (result.id, *(n.id for n in neighbours))}
    assert starts[result.id].count() == 2
    assert all(started.count() <= 2 for started in starts.values())
    assert len(supervisor.output.find(r"process\.stalled process=\d pid=\d+ silent_s=\d+")) == 2
    assert supervisor.output.find(r'File ".*tests/acceptance/tasks.py", line \d+ in freeze')
    assert supervisor.stop() == 0


def test_sigabrt_prints_the_stacks_of_a_process_whose_gil_a_task_keeps(fleet: Fleet) -> None:
    process = fleet.start()
    freeze.enqueue(STUCK_SECONDS)
    wait_until(Effect.objects.exists, "a running task")

    assert process.stop(signal.SIGABRT) == -signal.SIGABRT

    assert process.output.find(r'File ".*tests/acceptance/tasks.py", line \d+ in freeze')


def test_blocked_event_loop_harms_no_other_task(fleet: Fleet) -> None:
    neighbours = work_later.enqueue_many([((1.0,), {}) for _ in range(5)])
    process = fleet.start("--shutdown-timeout", "0.5s", heartbeat_timeout=30)
    wait_until(lambda: Effect.objects.count() == 5, "running neighbours")
    guilty = block_loop.using(timeout=0.2).enqueue(STUCK_SECONDS)
    process.output.wait_for(r"executor\.stuck task=\S+ id=" + guilty.id)
    wait_for_ended(5)
    rows = Task.objects.filter(pk__in=[neighbour.id for neighbour in neighbours])
    assert set(rows.values_list("status", "attempts", "executor_losses")) == {("SUCCESSFUL", 0, 0)}
    assert Task.objects.get(pk=guilty.id).status == "RUNNING"
    assert process.stop() == 0


def test_stop_between_two_stuck_tasks_ends_the_process(fleet: Fleet) -> None:
    """A stop while the process waits to be replaced ends the process."""
    for timeout in (0.2, 0.4):
        doze.using(timeout=timeout).enqueue(STUCK_SECONDS)
    compute.enqueue(STUCK_SECONDS)
    process = fleet.start("--shutdown-timeout", "5s")
    process.output.wait_for(r"executor\.stuck", count=2)
    assert process.stop() == 0
    assert len(process.output.find("^ready")) == 1
    assert Task.objects.get(task_type__endswith="compute").status == "READY"
    # Their threads ran to the end, so only a rescue may release their claims.
    assert Task.objects.running().count() == 2


@pytest.mark.parametrize("name", ["loop", "heartbeat", "watchdog"])
def test_executor_ends_when_one_of_its_threads_fails(fleet: Fleet, name: str) -> None:
    process = fleet.start(heartbeat_timeout=3)
    break_thread.enqueue(name, "fails")
    assert process.wait() == 70
    assert process.output.find(f"RuntimeError: {name} fails, as asked")
