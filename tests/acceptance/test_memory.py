"""A process with a memory limit: the task that exceeds it fails, and all others continue."""

from __future__ import annotations

import pytest

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import allow_memory, break_thread, compute, eat_memory, work, work_later
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

MIB = 2**20


def test_task_over_the_memory_limit_fails_alone(fleet: Fleet) -> None:
    process = fleet.start("--threads", "4", heartbeat_timeout=6)
    allow_memory.enqueue(128 * MIB)
    wait_for_end()
    eaters = eat_memory.enqueue_many([((16 * MIB,), {})] * 4)
    for body in (compute, work, work_later):
        body.using(max_attempts=20).enqueue_many([((0.05,), {})] * 10)

    assert wait_for_end() == {"SUCCESSFUL": 31, "FAILED": 4}

    failed = Task.objects.filter(pk__in=[eater.id for eater in eaters])
    assert {(row.status, row.attempts) for row in failed} == {("FAILED", 2)}
    assert {error["exception_class_path"] for row in failed for error in row.errors} == {"builtins.MemoryError"}
    assert not Task.objects.exclude(executor_losses=0).exists()
    assert process.stop() == 0


def test_heartbeat_and_watchdog_survive_a_memory_error(fleet: Fleet) -> None:
    process = fleet.start(heartbeat_timeout=1.5)
    for name in ("heartbeat", "watchdog"):
        break_thread.enqueue(name, "starves")
    process.output.wait_for("heartbeat.deferred")
    last_heartbeat = process.row.heartbeat.at
    wait_until(lambda: process.row.heartbeat.at > last_heartbeat, "a heartbeat")

    result = work.using(timeout=0.2, max_attempts=1).enqueue(60.0)

    assert wait_for_end() == {"SUCCESSFUL": 2, "FAILED": 1}
    assert Task.objects.get(pk=result.id).errors[-1]["exception_class_path"] == "jobqueue.exceptions.TaskTimeout"
    assert process.stop() == 0
