"""Bodies of different tasks do not affect each other."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jobqueue.conf.compat import task_finished, task_started
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Burst, Start, connected, gates, on_postgresql, row_of, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql

CLEAN = ["nobody", "en-us", "UTC"]


@pytest.mark.parametrize("body", [tasks.change_the_context, tasks.change_the_context_later])
def test_context_of_a_body_is_not_seen_by_the_next(burst: Burst, body: Any) -> None:
    results = body.enqueue_many([(("ada",), {})] * 3)

    burst(threads=1, async_slots=1)

    assert [row_of(result).return_value for result in results] == [CLEAN] * 3


@pytest.mark.parametrize("body", [tasks.change_the_context, tasks.change_the_context_later])
def test_context_of_a_receiver_is_not_seen_by_the_next_task(start: Start, body: Any) -> None:
    def receiver(**_: Any) -> None:
        tasks.change_context("of a receiver")

    start(threads=1, async_slots=1)
    with connected(receiver, task_started, task_finished):
        wait_for_status(body.enqueue("ada"), Status.SUCCESSFUL)

    assert wait_for_status(body.enqueue("ada"), Status.SUCCESSFUL).return_value == CLEAN


@pytest.mark.parametrize("neighbour", [tasks.wait_later, tasks.wait_in_a_child_later])
def test_body_that_cancels_all_asyncio_tasks_hits_itself_alone(start: Start, neighbour: Any) -> None:
    good = [neighbour.using(max_attempts=1).enqueue("beside", number) for number in range(5)]
    start(async_slots=20)
    gates["beside"].wait_for(5)

    evil = tasks.cancel_all_tasks.using(max_attempts=1).enqueue()
    assert "CancelledError" in str(wait_for_status(evil, Status.FAILED).errors)

    gates["beside"].open()
    for number, result in enumerate(good):
        row = wait_for_status(result, Status.SUCCESSFUL)
        assert (row.return_value, row.polls) == (number, 1)


def test_body_that_waits_for_what_it_cancelled_hits_itself_alone(start: Start) -> None:
    """The timeout cancels what the body waits for: tasks of other bodies."""
    good = [tasks.wait_later.using(max_attempts=1).enqueue("beside", number) for number in range(5)]
    running = start(async_slots=20)
    gates["beside"].wait_for(5)
    evil = tasks.cancel_all_tasks_and_wait.using(max_attempts=1, timeout=0.2).enqueue()
    gates["cancelled"].wait_for()
    wait_until(lambda: running.running_tasks[UUID(evil.id)].interrupted_at, "its timeout")
    gates["beside"].open()

    assert wait_for_status(evil, Status.FAILED).errors[-1]["exception_class_path"].endswith("TaskTimeout")
    for number, result in enumerate(good):
        row = wait_for_status(result, Status.SUCCESSFUL)
        assert (row.return_value, row.polls, row.claim_number) == (number, 1, 1)


def test_context_of_a_thread_of_the_loop_is_not_seen_by_the_next(burst: Burst) -> None:
    results = tasks.change_the_context_in_a_thread.enqueue_many([(("ada",), {})] * 3)

    burst(async_slots=1)

    assert [row_of(result).return_value for result in results] == [CLEAN] * 3


def test_task_factory_of_a_body_does_not_stop_its_neighbours(start: Start) -> None:
    start(async_slots=4)
    wait_for_status(tasks.set_a_failing_task_factory.enqueue(), Status.SUCCESSFUL)

    for number in range(3):
        wait_for_status(tasks.add_later.using(max_attempts=1).enqueue(number), Status.SUCCESSFUL)
