"""Commands that executors read from the database."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jobqueue import api
from jobqueue.models import Executor
from jobqueue.values.states import Command, Status
from tests.executor import tasks
from tests.executor.harness import Running, Start, gates, on_both_databases, wait_for_status
from tests.waiting import wait_until


def row_of(running: Running, backend: str) -> Executor:
    return Executor.objects.using(backend).get(pk=running.process.executor_id)


def tell(running: Running, command: Command, backend: str) -> None:
    assert api.command([running.process.executor_id], command, backend=backend) == 1


def is_in(running: Running, state: str, backend: str) -> bool:
    row = row_of(running, backend)
    return (row.heartbeat.state, row.command) == (state, "")


@on_both_databases
def test_paused_executor_claims_nothing_until_it_is_resumed(start: Start, backend: str) -> None:
    running = start(backend=backend)
    before = tasks.wait_at.using(backend=backend).enqueue("gate")
    gates["gate"].wait_for()

    tell(running, Command.PAUSE, backend)
    wait_until(lambda: is_in(running, "PAUSED", backend))
    after = tasks.add.using(backend=backend).enqueue(1)
    gates["gate"].open()
    wait_for_status(before, Status.SUCCESSFUL)
    assert running.loop._claim_budget() == 0
    assert not running.loop.engine.queues.queue_latency()[0].is_served

    tell(running, Command.RESUME, backend)
    wait_for_status(after, Status.SUCCESSFUL)
    wait_until(lambda: is_in(running, "RUNNING", backend))


@on_both_databases
def test_executor_after_a_stop_command_ends_as_after_sigterm(
    start: Start, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(backend=backend)
    result = tasks.wait_at.using(backend=backend).enqueue("gate")
    gates["gate"].wait_for()

    with caplog.at_level(logging.INFO, "jobqueue.executor"):
        tell(running, Command.STOP, backend)
        wait_until(lambda: is_in(running, "STOPPING", backend))
        gates["gate"].open()
        assert running.join() == 0

    wait_for_status(result, Status.SUCCESSFUL)
    assert row_of(running, backend).heartbeat.state == "STOPPED"
    assert running.process.health.status().was_stopped_on_request
    assert next(line for line in caplog.messages if line.startswith("executor.command_received")).endswith(
        " command=stop"
    )
    assert api.command([running.process.executor_id], Command.PAUSE, backend=backend) == 0


@on_both_databases
def test_unknown_command_is_ignored(start: Start, backend: str) -> None:
    running = start(backend=backend)
    Executor.objects.using(backend).update(command="DANCE")

    wait_until(lambda: is_in(running, "RUNNING", backend))
    wait_for_status(tasks.add.using(backend=backend).enqueue(1), Status.SUCCESSFUL)


@pytest.mark.django_db
def test_command_is_written_after_the_commit(django_capture_on_commit_callbacks: Any) -> None:
    """An executor skips a command in a row that a transaction keeps locked."""
    from tests.factories import ExecutorFactory

    row = ExecutorFactory.create()
    with django_capture_on_commit_callbacks(execute=True):
        assert api.command([str(row.pk)], Command.STOP) == 1
        row.refresh_from_db()
        assert row.command == ""
    row.refresh_from_db()
    assert row.command == "STOP"
