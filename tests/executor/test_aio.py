"""The event loop that async bodies share."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jobqueue.models import Task
from jobqueue.outcome import Status
from tests.executor import tasks
from tests.executor.harness import Burst, Start, gates, on_postgresql, row_of, wait_for, wait_until

pytestmark = on_postgresql


def test_bodies_run_at_once(start: Start) -> None:
    tasks.wait_later.enqueue_many([(("at once",), {})] * 50)

    start(threads=1, async_slots=50)

    gates["at once"].wait_for(50)


def test_what_a_body_left_behind_ends_no_loop(start: Start) -> None:
    running = start()
    wait_until(tasks.leave_a_child.enqueue("exit", "left"), Status.SUCCESSFUL)
    gates["left"].open()
    gates["left"].wait_for(2)

    for number in range(3):
        wait_until(tasks.add_later.enqueue(number), Status.SUCCESSFUL)
    assert running.pulse.failure is None


def test_what_a_body_left_behind_keeps_no_executor_from_ending(start: Start) -> None:
    running = start(shutdown_timeout=0.5)
    wait_until(tasks.leave_a_child.enqueue("plain", "left"), Status.SUCCESSFUL)

    assert running.stop() == 0
    assert not running.process.has_live_threads
    assert gates["left"].arrived == ["child"]


def test_a_body_that_blocks_in_its_thread_holds_up_nobody(start: Start) -> None:
    tasks.leave_a_thread_at_work.enqueue("blocked")
    start()
    gates["blocked"].wait_for(2)

    for number in range(3):
        wait_until(tasks.add_later.enqueue(number), Status.SUCCESSFUL)
    gates["blocked"].open()


@pytest.mark.parametrize(
    ("body", "ours"),
    [(tasks.add, "jobqueue.executor.crew.poll_in_thread"), (tasks.add_later, "jobqueue.executor.aio.poll_on_loop")],
)
def test_a_mistake_of_ours_fails_the_task_and_nothing_else(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, body: Any, ours: str
) -> None:
    results = body.enqueue_many([((number,), {}) for number in range(3)])

    def mistake(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(ours, mistake)
        burst(threads=1, async_slots=1)
    after = body.enqueue(1)
    burst(threads=1, async_slots=1)

    assert {(row_of(result).status, row_of(result).errors[0]["message"]) for result in results} == {
        (Status.FAILED, "a mistake of ours")
    }
    assert row_of(after).status == Status.SUCCESSFUL


def test_the_threads_of_an_executor_end_with_it(start: Start) -> None:
    before = threading.active_count()
    running = start(threads=4)
    tasks.add_later.enqueue_many([((number,), {}) for number in range(20)])
    wait_for(lambda: Task.objects.successful().count() == 20)

    running.stop()

    wait_for(lambda: threading.active_count() <= before)
