"""The event loop that async bodies share."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from jobqueue import api
from jobqueue.conf.compat import task_started
from jobqueue.executor.database import permits
from jobqueue.executor.pools import base, event_loop
from jobqueue.executor.running.async_runner import BodyThread
from jobqueue.models import Heartbeat, Task
from jobqueue.values.states import Status
from tests.executor import connection_tasks, tasks
from tests.executor.harness import Burst, Start, connected, gates, on_postgresql, row_of, wait_for_status
from tests.executor.test_connections import OF_THE_EXECUTOR, sessions
from tests.fixtures import Options
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = on_postgresql


def test_bodies_run_at_once(start: Start) -> None:
    tasks.wait_later.enqueue_many([(("at once",), {})] * 50)

    start(threads=1, async_slots=50)

    gates["at once"].wait_for(50)


def test_any_number_of_async_tasks_may_end_before_their_bodies(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each end starts the next task."""
    monkeypatch.setattr(base, "PREFETCH_SECONDS", 1000.0)  # all are claimed at once
    tasks.add_later.enqueue_many([((number,), {}) for number in range(800)])
    Task.objects.filter(args__0__gte=10).update(expires_at=datetime(2020, 1, 1, tzinfo=UTC))

    burst(async_slots=1)

    assert Task.objects.successful().count() == 10
    assert Task.objects.failed().filter(attempts=0).count() == 790
    assert "task.aborted" not in caplog.text


def test_async_body_leaving_callbacks_does_not_end_the_loop(start: Start) -> None:
    running = start()
    wait_for_status(tasks.leave_a_child.enqueue("exit", "left"), Status.SUCCESSFUL)
    gates["left"].open()
    gates["left"].wait_for(2)

    for number in range(3):
        wait_for_status(tasks.add_later.enqueue(number), Status.SUCCESSFUL)
    assert running.loop.failure is None


def test_async_body_leaving_tasks_does_not_delay_the_end(start: Start) -> None:
    running = start(shutdown_timeout=0.5)
    wait_for_status(tasks.leave_a_child.enqueue("plain", "left"), Status.SUCCESSFUL)

    assert running.stop() == 0
    assert not running.process.has_live_threads
    assert gates["left"].arrived == ["child"]


def test_async_body_blocking_in_its_thread_delays_no_other(start: Start) -> None:
    tasks.leave_a_thread_at_work.enqueue("blocked")
    start()
    gates["blocked"].wait_for(2)

    for number in range(3):
        wait_for_status(tasks.add_later.enqueue(number), Status.SUCCESSFUL)
    gates["blocked"].open()


def async_threads() -> set[threading.Thread]:
    """Return the threads of async bodies. Those of earlier tests may still be ending."""
    return {thread for thread in threading.enumerate() if "-async" in thread.name}


def test_a_body_that_calls_nothing_has_no_thread(burst: Burst, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(BodyThread, "submit", lambda *arguments: taken.append(arguments))
    result = tasks.add_later.enqueue(1)

    burst()

    assert (row_of(result).status, taken) == (Status.SUCCESSFUL, [])


def test_receivers_of_the_start_of_an_async_task_may_block(burst: Burst) -> None:
    seen: list[Any] = []

    def receiver(**_: Any) -> None:
        seen.append((threading.current_thread().name, Task.objects.running().count()))

    result = tasks.add_later.enqueue(1)
    with connected(receiver, task_started):
        burst()

    assert row_of(result).status == Status.SUCCESSFUL
    ((thread, running),) = seen
    assert "-async" in thread
    assert running == 1


def test_two_bodies_at_once_share_no_thread(start: Start) -> None:
    results = tasks.thread_of_calls.enqueue_many([(("both",), {})] * 2)
    start(async_slots=2)
    gates["both"].wait_for(2)
    gates["both"].open()

    first, second = (wait_for_status(result, Status.SUCCESSFUL).return_value for result in results)
    assert first != second


def test_async_body_with_a_busy_thread_counts_as_running(start: Start) -> None:
    start(async_slots=2)
    stuck = tasks.leave_a_thread_at_work.enqueue("at work")
    gates["at work"].wait_for(2)

    for _ in range(3):
        wait_for_status(tasks.thread_of_calls.enqueue(), Status.SUCCESSFUL)

    assert row_of(stuck).status == Status.RUNNING
    gates["at work"].open()
    wait_for_status(stuck, Status.SUCCESSFUL)


def test_async_body_leaving_a_task_lets_it_call_the_orm(start: Start) -> None:
    start(async_slots=1)
    wait_for_status(tasks.call_after_the_end.enqueue("late"), Status.SUCCESSFUL)

    gates["late"].open()

    (body, _), (child, _) = gates["late"].wait_for(2)
    assert body != child
    wait_until(lambda: sessions() <= OF_THE_EXECUTOR, "the end of its connection")


def test_more_bodies_than_connections_wait_for_their_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "MAX_BODY_THREADS", 2)
    before = async_threads()
    results = connection_tasks.session_for_a_while.enqueue_many([(("few",), {})] * 5)
    start(async_slots=5)
    gates["few"].wait_for(2)
    wait_until(lambda: len(async_threads() - before) == 5, "a thread for each body")
    assert len(gates["few"].arrived) == 2
    assert sessions() <= OF_THE_EXECUTOR + 2

    gates["few"].open()

    for result in results:
        wait_for_status(result, Status.SUCCESSFUL)


def shortages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("connections.exhausted")]


@pytest.mark.parametrize("parent", [connection_tasks.wait_for_a_child, connection_tasks.wait_for_a_sleeping_child])
def test_bodies_that_wait_for_others_leave_them_connections(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, parent: Any
) -> None:
    """With as many such bodies as connections, nothing would ever move."""
    monkeypatch.setattr(event_loop, "MAX_BODY_THREADS", 2)
    monkeypatch.setattr(permits, "PATIENCE_SECONDS", 0.1)
    results = parent.enqueue_many([((number,), {}) for number in range(8)])

    start(async_slots=20)

    for number, result in enumerate(results):
        assert wait_for_status(result, Status.SUCCESSFUL).return_value == number
    (line,) = shortages(caplog)
    assert "limit of 2" in line


def test_bodies_that_wait_for_others_within_a_call_leave_them_connections(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a body never rests. With ten times as many as connections, nothing would ever move."""
    monkeypatch.setattr(event_loop, "MAX_BODY_THREADS", 2)
    monkeypatch.setattr(permits, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(permits, "STUCK_SECONDS", 0.1)
    results = connection_tasks.wait_for_a_child_within_a_call.enqueue_many([((number,), {}) for number in range(20)])

    start(async_slots=50)

    for number, result in enumerate(results):
        assert wait_for_status(result, Status.SUCCESSFUL).return_value == number
    assert shortages(caplog)


def test_limit_of_connections_falls_back_while_they_are_in_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise an executor that is always busy would keep the higher one for ever."""
    monkeypatch.setattr(permits, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(permits, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(permits, "STUCK_SECONDS", 0.0)
    limited = permits.Permits(1)
    stuck, beyond = limited.acquire(), limited.acquire()
    monkeypatch.setattr(permits, "STUCK_SECONDS", 3600.0)
    limited.release(stuck)
    caplog.clear()

    waiter = threading.Thread(target=limited.acquire, daemon=True)
    waiter.start()
    wait_until(lambda: shortages(caplog))
    assert waiter.is_alive()
    limited.release(beyond)

    waiter.join(DEADLINE_SECONDS)
    assert not waiter.is_alive()


def test_bodies_that_use_their_connections_are_not_more_than_the_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_loop, "MAX_BODY_THREADS", 2)
    monkeypatch.setattr(permits, "PATIENCE_SECONDS", 0.1)
    results = connection_tasks.use_for_a_while.enqueue_many([(("few",), {})] * 4)
    start(async_slots=4)
    gates["few"].wait_for(2)

    wait_until(lambda: shortages(caplog))
    assert len(gates["few"].arrived) == 2

    gates["few"].open()
    for result in results:
        wait_for_status(result, Status.SUCCESSFUL)


def test_row_of_the_executor_shows_a_shortage_of_connections_until_it_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    options(HEARTBEAT_TIMEOUT=0.6)
    monkeypatch.setattr(event_loop, "MAX_BODY_THREADS", 2)
    monkeypatch.setattr(permits, "PATIENCE_SECONDS", 0.1)
    results = connection_tasks.use_for_a_while.enqueue_many([(("few",), {})] * 4)
    start(async_slots=4)

    wait_until(lambda: Heartbeat.objects.get().waiting_for_connections == 2, "a heartbeat that says so")
    gates["few"].open()
    for result in results:
        wait_for_status(result, Status.SUCCESSFUL)

    wait_until(lambda: Heartbeat.objects.get().waiting_for_connections == 0, "a heartbeat without a shortage")


def test_body_that_is_cancelled_while_it_waits_for_a_connection_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "MAX_BODY_THREADS", 1)
    before = async_threads()
    first = connection_tasks.session_for_a_while.enqueue("alone")
    running = start(async_slots=2)
    gates["alone"].wait_for()
    second = connection_tasks.session_for_a_while.enqueue("alone")
    wait_for_status(second, Status.RUNNING)
    wait_until(lambda: len(async_threads() - before) == 2)

    api.cancel(second.id, backend="default")
    waiting = running.loop.running_tasks.snapshot()[UUID(second.id)]
    wait_until(waiting.should_stop, "the cancellation, before there is a connection")
    gates["alone"].open()

    wait_for_status(second, Status.CANCELLED)
    wait_for_status(first, Status.SUCCESSFUL)
    wait_for_status(connection_tasks.session_for_a_while.enqueue("alone"), Status.SUCCESSFUL)


def test_threads_do_not_grow_with_the_number_of_bodies(start: Start) -> None:
    before = async_threads()
    running = start(async_slots=3)
    tasks.thread_of_calls.enqueue_many([((), {})] * 200)

    wait_until(lambda: running.loop.outcomes.counts.finished == 200)

    wait_until(lambda: len(async_threads() - before) <= 3)


def test_the_threads_of_an_executor_end_with_it(start: Start) -> None:
    before = threading.active_count()
    running = start(threads=4)
    tasks.thread_of_calls.enqueue_many([((), {})] * 20)
    wait_until(lambda: Task.objects.successful().count() == 20)

    running.stop()

    wait_until(lambda: threading.active_count() <= before)
