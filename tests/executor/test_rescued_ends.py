"""A rescue that ends a task announces the end, as an attempt does."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.models import Task
from jobqueue.records import Status
from tests.executor import tasks
from tests.executor.harness import Start, on_both_databases
from tests.factories import ExecutorFactory, TaskFactory, ago
from tests.fixtures import Options
from tests.waiting import wait_until


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
    task = TaskFactory.create(
        using=backend,
        backend=backend,
        task_type=tasks.add.task_type,
        args=[1],
        running=True,
        executor_id=lost.pk,
        **columns,
    )
    start(backend=backend, poll_interval=0.05)

    wait_until(lambda: announced)
    assert Task.objects.using(backend).get(pk=task.pk).status == status
    assert [(result.id, result.status.value) for result in announced] == [(str(task.pk), "FAILED")]
