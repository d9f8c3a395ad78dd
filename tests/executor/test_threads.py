"""The end of any thread of an executor ends the process, and the probes report it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from jobqueue.conf.compat import task_finished
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.exit_status import EXIT_INTERNAL
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Running, Start, connected, gates, on_postgresql, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql


@pytest.fixture
def exits(start: Start, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the codes with which the executor would have ended this process."""
    codes: list[int] = []
    monkeypatch.setattr("jobqueue.executor.process.exit_now", codes.append)
    return codes


def problems(running: Running) -> tuple[set[str], set[str]]:
    """Return the problems of /livez and of /readyz."""
    health = running.process.health.status()
    return {problem.what for problem in health.stalled}, {problem.what for problem in health.unready}


@pytest.mark.parametrize("name", ["jobqueue-worker-0", "jobqueue-callbacks", "jobqueue-loop"])
def test_process_ends_with_any_of_its_threads(
    start: Start, exits: list[int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail_in_one(original: Any) -> Any:
        def fail(*arguments: Any) -> Any:
            if threading.current_thread().name == name:
                raise SystemError("in one thread")
            return original(*arguments)

        return fail

    with monkeypatch.context() as patch:
        patch.setattr(TaskConnections, "enter", fail_in_one(TaskConnections.enter))
        patch.setattr(asyncio, "set_event_loop", fail_in_one(asyncio.set_event_loop))
        running = start(threads=1)

    wait_until(lambda: exits == [EXIT_INTERNAL], "the end of the process")
    stalled, unready = problems(running)
    assert f"The thread {name} has ended." in stalled & unready


def test_process_ends_where_an_async_task_cannot_be_finished(
    start: Start, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def fail() -> None:
        if (name := threading.current_thread().name) == "jobqueue-loop" and not failed:
            failed.append(name)
            raise SystemError("after a body")

    monkeypatch.setattr("jobqueue.executor.pools.event_loop.fill_standard_streams", fail)
    start(shutdown_timeout=0.1)
    tasks.add_later.enqueue(1)

    wait_until(lambda: exits == [EXIT_INTERNAL], "the end of the process")


def test_readyz_reports_a_blocked_event_loop(start: Start) -> None:
    running = start()
    blocked = tasks.block_the_loop.enqueue("blocked")
    gates["blocked"].wait_for()

    (what,) = wait_until(lambda: [*running.loop.threads.blocked(0.05)])
    assert what.startswith("The event loop has not moved for")
    assert not problems(running)[0]

    gates["blocked"].open()
    wait_for_status(blocked, Status.SUCCESSFUL)
    wait_until(lambda: not [*running.loop.threads.blocked(0.05)], "an answer of the loop")


def test_readyz_reports_a_hanging_receiver(start: Start) -> None:
    def receiver(**_: Any) -> None:
        gates["receiver"].pass_through()

    with connected(receiver, task_finished):
        running = start()
        tasks.add_later.enqueue(1)
        gates["receiver"].wait_for()

        (what,) = wait_until(lambda: [*running.loop.threads.blocked(0.05)])
        assert what.startswith("A receiver of task signals has been running for")
        gates.open_all()
