"""A graceful stop loses no task and counts no attempt."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.models import Executor, Heartbeat, Task
from jobqueue.values.states import Status
from tests.executor import atomic_tasks, tasks
from tests.executor.harness import Running, Start, gates, in_line, on_both_databases, on_postgresql, row_of
from tests.waiting import wait_until

pytestmark = on_postgresql


@on_both_databases
@pytest.mark.parametrize("body", [tasks.wait_at, tasks.wait_later])
def test_stop_lets_running_tasks_end_and_claims_no_others(start: Start, body: Any, backend: str) -> None:
    result = body.using(backend=backend).enqueue("running")
    running = start(backend=backend, poll_interval=0.05)
    gates["running"].wait_for()

    running.process.stop()
    turns = running.loop.turns
    # The turn that was under way may have asked for work before.
    wait_until(lambda: running.loop.is_stopping and running.loop.turns > turns)
    after = tasks.add.using(backend=backend).enqueue(1)
    gates["running"].open()
    running.join()

    assert row_of(result).status == Status.SUCCESSFUL
    assert (row_of(after).status, row_of(after).claim_number) == (Status.READY, 0)
    assert Heartbeat.objects.using(backend).get().state == Executor.State.STOPPED


def test_stop_releases_buffered_tasks_at_once(start: Start) -> None:
    running, result = in_line(start)
    rank = row_of(result).rank

    running.process.stop()

    row = wait_until(lambda: Task.objects.filter(pk=result.id, status=Status.READY).first())
    assert (row.rank, row.attempts, row.worker_ids, row.executor_id) == (rank, 0, [], None)
    gates["long"].open()
    running.join()


@on_both_databases
@pytest.mark.parametrize("body", [tasks.spin_at, tasks.wait_later])
def test_stop_releases_overdue_tasks_without_an_attempt(start: Start, body: Any, backend: str) -> None:
    result = body.using(backend=backend, max_attempts=1).enqueue("long")
    running = start(backend=backend, shutdown_timeout=0.1)
    gates["long"].wait_for()
    rank = row_of(result).rank

    running.stop()

    row = row_of(result)
    assert (row.status, row.rank, row.attempts, row.errors) == (Status.READY, rank, 0, [])
    assert row.worker_ids == [str(running.process.executor_id)]  # it was started, all the same


def test_an_error_on_the_way_out_burns_no_attempt_either(start: Start) -> None:
    result = tasks.fail_on_the_way_out.using(max_attempts=1).enqueue("failing")
    running = start(shutdown_timeout=0.1)
    gates["failing"].wait_for()

    running.stop()

    assert (row_of(result).status, row_of(result).attempts) == (Status.READY, 0)


def test_an_atomic_body_goes_back_with_its_writes_undone(start: Start) -> None:
    result = atomic_tasks.write_and_spin.enqueue("writing")
    running = start(shutdown_timeout=0.1)
    gates["writing"].wait_for()

    running.stop()

    assert (row_of(result).status, row_of(result).attempts) == (Status.READY, 0)
    assert atomic_tasks.written() == []


def test_task_that_ignores_a_shutdown_is_not_stuck(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Another task may block its event loop, and a loss would count against it. It is released instead."""

    def prepare(running: Running) -> None:
        running.process._watchdog._grace = 0.0  # it looks several times until the release

    result = tasks.wait_at.enqueue("ignored")
    running = start(shutdown_timeout=0.1, prepare=prepare)
    gates["ignored"].wait_for()

    running.process.stop()

    wait_until(lambda: row_of(result).status == Status.READY or "executor.stuck" in caplog.text)
    row = row_of(result)
    assert (row.status, row.attempts, row.executor_losses, row.errors) == (Status.READY, 0, 0, [])
    gates["ignored"].open()
    running.join()
    assert "executor.stuck" not in caplog.text
