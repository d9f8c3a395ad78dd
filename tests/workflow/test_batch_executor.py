"""Batches in an executor: they end by themselves, and a cancel reaches members that run."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue import Batch
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.conftest import burst, start
from tests.executor.harness import Burst, Start, gates, on_both_databases, on_postgresql
from tests.waiting import wait_until
from tests.workflow import members
from tests.workflow.members import ended, failed, succeeded, work

__all__ = ["burst", "start"]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_members() -> None:
    members.broken.clear()
    members.called.clear()


@on_both_databases
def test_burst_ends_batches_with_their_callbacks(burst: Burst, backend: str) -> None:
    members.broken.add(7)
    options: Any = {
        "on_success": succeeded.using(backend=backend),
        "on_failure": failed.using(backend=backend),
        "on_end": ended.using(backend=backend),
    }
    with Batch(backend=backend, **options) as batch:
        batch.add_many(work.using(backend=backend), (((number,), {}) for number in range(100, 150)))
    with Batch(backend=backend, **options) as other:
        other.add(work.using(backend=backend).plan(7))
    burst(backend=backend)

    assert sorted(name for name, _ in members.called) == ["on_end", "on_end", "on_failure", "on_success"]
    assert (batch.progress().status, other.progress().status) == (Status.SUCCESSFUL, Status.FAILED)


@on_postgresql
def test_cancel_of_batch_stops_member_that_runs(start: Start) -> None:
    with Batch(on_end=ended) as batch:
        batch.add(tasks.wait_later.plan("member"))
        batch.add_many(work, (((number,), {}) for number in range(20)))
    start(threads=2)
    gates["member"].wait_for()
    batch.cancel()
    wait_until(lambda: batch.progress().status is Status.CANCELLED)
    wait_until(lambda: not Task.objects.filter(parent_id=batch.pk).live().exists())

    assert members.called == []
