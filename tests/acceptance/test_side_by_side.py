"""Several executors on one queue."""

from __future__ import annotations

from collections import Counter

import pytest

from jobqueue.models import Executor, Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, work, work_later
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_two_executors_share_tasks_and_run_each_once(fleet: Fleet) -> None:
    processes = [fleet.start("--threads", "4") for _ in range(2)]
    for body in (book, work, work_later):
        body.enqueue_many([((0.01,), {}) for _ in range(300)])
    assert wait_for_end() == {"SUCCESSFUL": 900}
    starts = Counter(Effect.objects.values_list("task_id", flat=True))
    assert set(starts.values()) == {1}
    shares = Counter(Effect.objects.values_list("pid", flat=True))
    assert set(shares) == {process.pid for process in processes}
    assert min(shares.values()) > 90
    # A task that waited in the buffer for a second may be released and claimed again.
    assert {(row.executor_losses, len(row.worker_ids)) for row in Task.objects.all()} == {(0, 1)}
    assert [process.stop() for process in processes] == [0, 0]


def test_two_executors_may_share_a_name(fleet: Fleet) -> None:
    processes = [fleet.start("--threads", "1", "--name", "web") for _ in range(2)]
    work.enqueue_many([((0.3,), {}) for _ in range(6)])
    assert wait_for_end() == {"SUCCESSFUL": 6}
    assert {row.name for row in Executor.objects.all()} == {"web"}
    assert Executor.objects.count() == 2
    assert len({tuple(row.worker_ids) for row in Task.objects.all()}) == 2
    # The end of one executor does not affect the other.
    assert processes[0].stop() == 0
    work.enqueue()
    wait_until(lambda: Task.objects.successful().count() == 7, "the other's work")
    assert processes[1].row.heartbeat.state == "RUNNING"
    assert processes[1].stop() == 0
