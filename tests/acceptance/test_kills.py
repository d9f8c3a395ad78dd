"""Executors that die, freeze, or are killed by their own tasks."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from jobqueue.exceptions import ExecutorLost
from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import compute, exit_with, hang, keep_place, kill_process, segfault, work
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.smoke
def test_tasks_that_kill_their_process_fail_and_others_succeed(fleet: Fleet) -> None:
    supervisor = fleet.start("--processes", "2", "--threads", "4", heartbeat_timeout=1.0)
    killers: list[Any] = [kill_process.enqueue(), segfault.enqueue(), exit_with.enqueue(3)]
    compute.enqueue_many([((0.3,), {}) for _ in range(40)])
    assert wait_for_end(seconds=120) == {"SUCCESSFUL": 40, "FAILED": 3}
    for killer in killers:
        row = Task.objects.get(pk=killer.id)
        assert row.executor_losses == 3
        assert row.errors[-1]["exception_class_path"] == f"{ExecutorLost.__module__}.{ExecutorLost.__qualname__}"
        assert row.attempts == 0
        assert Effect.objects.filter(task_id=killer.id).exists()  # it ran, and was not only lost beside the other
    assert not Task.objects.exclude(attempts=0).exists()
    for number in (signal.SIGKILL, signal.SIGSEGV):
        assert supervisor.output.find(f"process.ended .* reason=signal {number.value}")
    assert supervisor.stop() == 0


def test_task_whose_process_is_killed_begins_with_its_last_checkpoint(fleet: Fleet) -> None:
    result = keep_place.enqueue()
    supervisor = fleet.start("--processes", "2", heartbeat_timeout=1.0)
    assert wait_for_end() == {"SUCCESSFUL": 1}
    row = Task.objects.get(pk=result.id)
    assert (row.return_value, row.inner_state, row.executor_losses) == (2, {"checkpoint": 4}, 1)
    assert supervisor.stop() == 0


@pytest.mark.parametrize("body", [work, hang], ids=lambda body: body.name)
def test_frozen_executor_cannot_overwrite_a_newer_outcome(fleet: Fleet, body: Any) -> None:
    """The second body cannot be interrupted. Only its claim number keeps its outcome from being committed."""
    result = body.enqueue(5.0)
    frozen = fleet.start(heartbeat_timeout=2.5)
    wait_until(Effect.objects.exists, "a running task")
    frozen.send(signal.SIGSTOP)
    other = fleet.start(heartbeat_timeout=2.5)
    assert wait_for_end() == {"SUCCESSFUL": 1}
    frozen.send(signal.SIGCONT)
    frozen.output.wait_for("task.commit_rejected")
    assert not frozen.output.find("most recent call first"), "faulthandler crashes a process whose threads run"
    row = Task.objects.get(pk=result.id)
    assert (row.claim_number, row.executor_losses, row.attempts) == (2, 1, 0)
    assert row.return_value == (other.pid if body is work else None)
    assert row.worker_ids[-1] == str(other.row.pk)
    assert frozen.stop() == 0
    assert frozen.output.find(r"executor\.stopped .* lost=1")
    assert other.stop() == 0
