"""Cancel tasks in every state."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue import api
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import (
    Running,
    Start,
    gates,
    in_line,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
)
from tests.waiting import wait_until

pytestmark = on_postgresql

CANCELLED = "jobqueue.exceptions.TaskCancelled"


def wait_for_listener(running: Running) -> None:
    wait_until(lambda: running.process.listener is not None and running.process.listener.is_listening)


@on_both_databases
def test_a_queued_task_is_never_started(start: Start, backend: str) -> None:
    first = tasks.wait_at.using(backend=backend).enqueue("first")
    queued = tasks.wait_at.using(backend=backend).enqueue("queued")
    start(backend=backend, threads=1)
    gates["first"].wait_for()

    report = api.cancel(queued.id, backend=backend)
    gates["first"].open()

    assert report.cancelled + report.requested == 1
    wait_for_status(first, Status.SUCCESSFUL)
    wait_for_status(queued, Status.CANCELLED)
    assert gates["queued"].arrived == []


@on_both_databases
@pytest.mark.parametrize("body", [tasks.spin_at, tasks.wait_later])
def test_a_running_body_is_stopped(start: Start, options: Any, body: Any, backend: str) -> None:
    options(HEARTBEAT_TIMEOUT=3)  # SQLite has no notifications: the next beat, then
    result = body.using(backend=backend).enqueue("cancelled")
    start(backend=backend)
    gates["cancelled"].wait_for()

    assert api.cancel(result.id, backend=backend).requested == 1

    row = wait_for_status(result, Status.CANCELLED)
    assert row.errors[-1]["exception_class_path"] == CANCELLED
    assert row.errors[-1]["message"] == "The task was cancelled while it ran."


@pytest.mark.parametrize("body", [tasks.spin_at, tasks.wait_later])
def test_notification_brings_a_cancel_at_once(start: Start, options: Any, body: Any) -> None:
    options(HEARTBEAT_TIMEOUT=86_400)  # the next beat is hours away
    result = body.enqueue("cancelled")
    wait_for_listener(start())
    gates["cancelled"].wait_for()

    api.cancel(result.id, backend="default")

    wait_for_status(result, Status.CANCELLED)


def test_a_task_in_line_is_never_started(start: Start) -> None:
    """A claimed task that waits for a thread counts as running."""
    running, result = in_line(start)

    assert api.cancel(result.id, backend="default").requested == 1

    row = wait_for_status(result, Status.CANCELLED)
    assert (row.attempts, row.worker_ids, row.errors) == (0, [], [])
    assert gates["in line"].arrived == []
    wait_until(lambda: len(running.running_tasks) == 1)


def test_cancelled_body_that_returns_has_succeeded(start: Start) -> None:
    result = tasks.return_all_the_same.enqueue("stubborn")
    start()
    gates["stubborn"].wait_for()

    api.cancel(result.id, backend="default")

    assert wait_for_status(result, Status.SUCCESSFUL).return_value == "done anyway"


@pytest.mark.parametrize("attempts", [1, 5])
def test_a_body_that_fails_on_its_way_out_ends_cancelled(start: Start, attempts: int) -> None:
    result = tasks.fail_on_the_way_out.using(max_attempts=attempts).enqueue("failing")
    start()
    gates["failing"].wait_for()

    api.cancel(result.id, backend="default")

    row = wait_for_status(result, Status.CANCELLED)
    assert row.errors[-1]["message"] == "half written"


def test_a_body_that_would_be_retried_ends_cancelled(start: Start) -> None:
    """The task fails by itself between the request and the interruption."""
    result = tasks.fail_at.enqueue("retried")
    running = start()
    gates["retried"].wait_for()
    Task.objects.filter(pk=result.id).update(cancel_requested_at=running.process.engine.db.now())

    gates["retried"].open()

    row = wait_for_status(result, Status.CANCELLED)
    assert (row.attempts, row.errors[-1]["message"]) == (1, "as asked")


def test_a_cancelled_retry_does_not_come_back(start: Start) -> None:
    result = tasks.retry_much_later.enqueue()
    start()
    wait_for_status(result, Status.SCHEDULED)

    assert api.cancel(result.id, backend="default").cancelled == 1

    assert row_of(result).status == Status.CANCELLED


def test_the_next_task_of_the_thread_is_unharmed(start: Start) -> None:
    running = start(threads=1)
    wait_for_listener(running)
    for number in range(5):
        result, after = tasks.spin_at.enqueue(f"cancelled {number}"), tasks.add.enqueue(number)
        gates[f"cancelled {number}"].wait_for()
        api.cancel(result.id, backend="default")
        wait_for_status(result, Status.CANCELLED)
        wait_for_status(after, Status.SUCCESSFUL)
