"""What bodies and receivers of the signals of django.tasks get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from jobqueue import api
from jobqueue.backend import JobQueueBackend
from jobqueue.conf.compat import PACKAGE, TaskResultStatus, task_finished, task_started
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import (
    Burst,
    Start,
    connected,
    gates,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
)
from tests.waiting import wait_until

pytestmark = on_postgresql

Announced = list[Any]


# --- the context


@on_both_databases
@pytest.mark.parametrize("body", [tasks.fail_with_context, tasks.fail_with_context_later])
def test_each_attempt_has_its_number_and_all_have_one_key(burst: Burst, body: Any, backend: str) -> None:
    result, other = (body.using(backend=backend).enqueue(name) for name in ("first", "second"))

    burst(backend=backend)

    seen = gates["first"].arrived
    assert [context["attempt"] for context in seen] == [1, 2, 3]
    assert {context["idempotency_key"] for context in seen} == {f"{result.id}:0"}
    assert {context["id"] for context in seen} == {result.id}
    assert {context["backend"] for context in seen} == {backend}
    assert [context["errors"] for context in seen] == [0, 1, 2]
    assert gates["second"].arrived[0]["idempotency_key"] == f"{other.id}:0"
    assert row_of(result).status == Status.FAILED


@pytest.mark.parametrize("body", [tasks.ask_whether_to_stop, tasks.ask_whether_to_stop_later])
def test_body_can_ask_whether_it_should_stop(start: Start, body: Any) -> None:
    result = body.enqueue("asking")
    start()
    gates["asking"].wait_for()

    api.cancel(result.id, backend="default")

    assert wait_for_status(result, Status.SUCCESSFUL).return_value == "stopped in order"


def test_the_context_shows_the_task_as_it_is(burst: Burst) -> None:
    result = tasks.show_task.using(priority=7, queue_name="special").enqueue("a", b=1)

    burst()

    assert row_of(result).return_value == {
        "status": "RUNNING",
        "args": ["a"],
        "kwargs": {"b": 1},
        "priority": 7,
        "queue_name": "special",
        "refreshed": "RUNNING",
    }


# --- signals


@pytest.fixture
def heard() -> Iterator[Announced]:
    """Return what both signals were sent with: (word, sender, result, status of the row)."""
    heard: Announced = []

    def receiver(signal: Any, sender: Any, task_result: Any, **_: Any) -> None:
        word = "started" if signal is task_started else "finished"
        heard.append((word, sender, task_result, row_of(task_result).status))

    with connected(receiver, task_started, task_finished):
        yield heard


@on_both_databases
@pytest.mark.parametrize("body", [tasks.add, tasks.add_later])
def test_receivers_hear_of_start_and_end(burst: Burst, heard: Announced, body: Any, backend: str) -> None:
    result = body.using(backend=backend).enqueue(1, b=2)

    burst(backend=backend)

    (started, finished) = heard
    assert [word for word, *_ in heard] == ["started", "finished"]
    assert {sender for _, sender, *_ in heard} == {JobQueueBackend}
    assert [status for *_, status in heard] == [Status.RUNNING, Status.SUCCESSFUL]  # the end after its commit
    assert (started[2].status, started[2].attempts) == (TaskResultStatus.RUNNING, 1)
    assert (finished[2].status, finished[2].return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert (finished[2].id, finished[2].args, finished[2].kwargs, finished[2].backend) == (
        result.id,
        [1],
        {"b": 2},
        backend,
    )
    assert finished[2].finished_at is not None


@pytest.mark.parametrize("body", [tasks.fail, tasks.fail_later])
def test_only_the_last_failure_is_the_end(burst: Burst, heard: Announced, body: Any) -> None:
    body.enqueue()

    burst()

    assert [word for word, *_ in heard] == ["started", "started", "finished"]
    ended = heard[-1][2]
    assert (ended.status, ended.attempts, len(ended.errors)) == (TaskResultStatus.FAILED, 2, 2)
    assert ended.errors[-1].exception_class is ValueError
    with pytest.raises(ValueError, match="failed"):
        _ = ended.return_value


@pytest.mark.parametrize("kind", ["plain", "weird", "weird exit", "exit", "keyboard", "generator", "circle", "groups"])
def test_the_log_of_django_gets_the_exception(burst: Burst, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    tasks.fail.using(max_attempts=1).enqueue(kind)

    burst()

    (record,) = [record for record in caplog.records if record.name == PACKAGE and record.levelname == "ERROR"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], type(tasks.EXCEPTIONS[kind]()))
    first = record.exc_info[2]
    assert first is not None
    assert first.tb_frame.f_code is tasks.fail.func.__code__


def test_a_cancelled_task_ends_failed_for_receivers(start: Start, heard: Announced) -> None:
    result = tasks.spin_at.enqueue("cancelled")
    running = start()
    gates["cancelled"].wait_for()
    api.cancel(result.id, backend="default")
    wait_for_status(result, Status.CANCELLED)
    wait_until(lambda: len(heard) == 2)

    ended = heard[-1][2]
    assert ended.status == TaskResultStatus.FAILED
    assert ended.errors[-1].exception_class_path == "jobqueue.exceptions.TaskCancelled"
    assert running.loop.outcomes.counts.finished == 1


def test_an_expired_task_has_an_end_without_a_start(burst: Burst, heard: Announced) -> None:
    result = tasks.add.enqueue(1)
    Task.objects.update(expires_at=row_of(result).enqueued_at)

    burst()

    ((word, _, ended, status),) = heard
    assert (word, ended.status, status) == ("finished", TaskResultStatus.FAILED, Status.FAILED)


def raise_an_error(**_: Any) -> None:
    raise ValueError("the receiver's own")


def raise_an_exit(**_: Any) -> None:
    raise SystemExit(3)


def leave_a_transaction_open(**_: Any) -> None:
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO nowhere")


def break_the_connection(**_: Any) -> None:
    connection.ensure_connection()
    connection.connection.close()


@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
@pytest.mark.parametrize("body", [tasks.count_tasks, tasks.count_tasks_later])
@pytest.mark.parametrize("receiver", [raise_an_error, raise_an_exit, leave_a_transaction_open, break_the_connection])
def test_failing_receivers_do_not_affect_tasks(burst: Burst, signal: Any, body: Any, receiver: Any) -> None:
    results = body.enqueue_many([((), {})] * 3)
    with connected(receiver, signal):
        running = burst(threads=1, async_slots=1)

    assert [row_of(result).status for result in results] == [Status.SUCCESSFUL] * 3
    assert running.loop.outcomes.counts.finished == 3


def test_receivers_of_other_tasks_wait_for_no_body(start: Start, announced: Announced) -> None:
    """All worker threads are busy. The end of an async task is announced nevertheless."""
    tasks.wait_at.enqueue_many([(("long",), {})] * 2)
    start(threads=2)
    gates["long"].wait_for(2)

    result = tasks.add_later.enqueue(1)

    wait_until(lambda: [task_result.id for task_result in announced] == [result.id])


def test_with_too_many_left_to_tell_nothing_more_is_claimed(
    start: Start, slow_receiver: Announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.executor.callbacks.MAX_BACKLOG", 2)
    monkeypatch.setattr("jobqueue.executor.pools.base.MAX_PREFETCH", 0)  # or one claim brings them all
    tasks.add_later.enqueue_many([((number,), {}) for number in range(12)])

    running = start(async_slots=2, burst=True)
    largest = 0
    while running.exit_code is None:
        largest = max(largest, Task.objects.finished().count() - len(slow_receiver))
    running.join()

    assert len(slow_receiver) == 12
    assert largest <= 5
