"""Django's connections in the threads of bodies: opened lazily, and clean for the next body."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import atomic_tasks, connection_tasks, tasks
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

pytestmark = [on_postgresql, pytest.mark.slow]

OF_THE_EXECUTOR = 3  # loop, heartbeat, listener


def sessions() -> int:
    """Count the server's other sessions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


@pytest.fixture(params=[0, None], ids=["fresh", "persistent"])
def max_age(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Test both settings: a connection for each task, and one for many."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", request.param)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def persistent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)


def test_tasks_without_a_database_open_no_connection(start: Start, persistent: None) -> None:
    running = start(threads=4)
    tasks.add.enqueue_many([((number,), {}) for number in range(50)])
    tasks.add_later.enqueue_many([((number,), {}) for number in range(50)])

    wait_until(lambda: running.loop.outcomes.counts.finished == 100)

    # One that a task had opened would stay; that in which the listener asks for a notification does not.
    wait_until(lambda: sessions() <= OF_THE_EXECUTOR, "no other connection")


def test_connections_do_not_outlive_their_age(start: Start, max_age: int | None) -> None:
    running = start(threads=2)
    connection_tasks.session_of_database.enqueue_many([((), {})] * 50)

    wait_until(lambda: running.loop.outcomes.counts.finished == 50)

    kept = 0 if max_age == 0 else 2
    wait_until(lambda: sessions() <= OF_THE_EXECUTOR + kept, "the end of the others")
    assert len(set(Task.objects.values_list("return_value", flat=True))) <= (50 if max_age == 0 else 2)


def test_the_session_of_a_thread_is_kept_for_the_next_task(burst: Burst, persistent: None) -> None:
    connection_tasks.session_of_database.enqueue_many([((), {})] * 10)

    burst(threads=1)

    assert len(set(Task.objects.values_list("return_value", flat=True))) == 1


def test_receivers_of_connections_set_up_the_session_of_each_task(burst: Burst, persistent: None) -> None:
    def set_up(connection: BaseDatabaseWrapper, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 4321")

    results = connection_tasks.look_at_session.enqueue_many([((), {})] * 3)
    with connected(set_up, connection_created):
        burst(threads=1)

    assert all("4321ms" in (row_of(result).return_value or []) for result in results)


FAILING = ["leaves a block", "begins", "breaks its transaction"]


@pytest.mark.parametrize("body", [connection_tasks.make_a_mess, connection_tasks.make_a_mess_later])
@pytest.mark.parametrize("mess", connection_tasks.MESSES)
def test_next_task_finds_a_clean_session(burst: Burst, max_age: int | None, mess: str, body: Any) -> None:
    connection_tasks.look_at_session.enqueue()
    messy = body.using(max_attempts=1).enqueue(mess)
    after = connection_tasks.look_at_session.enqueue()

    burst(threads=1, async_slots=1)

    before, _, following = Task.objects.order_by("pk").values_list("return_value", flat=True)
    assert before is not None
    assert following == before
    row = row_of(messy)
    assert row.status == (Status.FAILED if mess in FAILING else Status.SUCCESSFUL), row.errors
    if mess == "leaves a block":
        (error,) = row.errors
        assert error["exception_class_path"] == "django.db.transaction.TransactionManagementError"
        assert error["message"] == "The task left a transaction open on the database 'default'; it was rolled back."
    assert row_of(after).attempts == 0


def test_a_connection_that_died_while_it_was_idle_costs_no_attempt(start: Start, persistent: None) -> None:
    start(threads=1)
    first = wait_for_status(connection_tasks.session_of_database.enqueue(), Status.SUCCESSFUL).return_value
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [first])

    second = wait_for_status(connection_tasks.session_of_database.using(max_attempts=1).enqueue(), Status.SUCCESSFUL)

    assert second.return_value != first


def test_async_bodies_share_no_connection(start: Start, persistent: None) -> None:
    running = start(async_slots=10)
    connection_tasks.session_for_a_while.enqueue_many([(("at once",), {})] * 10)
    gates["at once"].wait_for(10)
    gates["at once"].open()
    wait_until(lambda: running.loop.outcomes.counts.finished == 10)

    assert len(set(Task.objects.values_list("return_value", flat=True))) == 10
    wait_until(lambda: sessions() <= OF_THE_EXECUTOR, "the end of the others")


def test_threads_that_an_async_body_borrows_keep_no_connection(start: Start, persistent: None) -> None:
    running = start()
    connection_tasks.session_in_borrowed_threads.enqueue_many([((), {})] * 5)

    wait_until(lambda: running.loop.outcomes.counts.finished == 5)

    wait_until(lambda: sessions() <= OF_THE_EXECUTOR, "the end of the others")


@on_both_databases
def test_nothing_grows_with_the_number_of_tasks(
    start: Start, settings: Any, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """With DEBUG on, where Django keeps every query."""
    settings.DEBUG = True
    monkeypatch.setitem(connections.settings[backend], "CONN_MAX_AGE", None)
    running = start(backend=backend, threads=2, async_slots=4)
    logged: list[int] = []
    loop = running.process.engine.commit_and_claim

    def count(*arguments: Any, **options: Any) -> Any:
        logged.append(len(connections[backend].queries_log))
        return loop(*arguments, **options)

    monkeypatch.setattr(running.process.engine, "commit_and_claim", count)

    def work_off(count: int) -> None:
        finished = running.loop.outcomes.counts.finished
        connection_tasks.query.using(backend=backend).enqueue_many([((backend,), {})] * count)
        connection_tasks.query_later.using(backend=backend).enqueue_many([((backend,), {})] * (count // 10))
        wait_until(lambda: running.loop.outcomes.counts.finished == finished + count + count // 10, seconds=120.0)

    work_off(100)
    threads = threading.active_count()
    work_off(500)

    assert threading.active_count() <= threads + 4  # those of async bodies in flight
    assert set(Task.objects.using(backend).values_list("return_value", flat=True)) <= {1, 2}
    assert max(logged) < 100
    if backend == "default":
        wait_until(lambda: sessions() <= OF_THE_EXECUTOR + 2, "the end of the others")


def in_worker_threads(monkeypatch: pytest.MonkeyPatch, fail: Callable[[BaseDatabaseWrapper], None]) -> None:
    """Let `fail` run between login and first statement, once in each worker thread."""
    init, failed = DatabaseWrapper.init_connection_state, set()

    def init_connection_state(wrapper: DatabaseWrapper) -> None:
        thread = threading.current_thread().name
        if "-worker-" in thread and thread not in failed:
            failed.add(thread)
            fail(wrapper)
        init(wrapper)

    monkeypatch.setattr(DatabaseWrapper, "init_connection_state", init_connection_state)


def cut(wrapper: BaseDatabaseWrapper) -> None:
    wrapper.connection.close()


@pytest.mark.parametrize(
    "body",
    [
        connection_tasks.session_of_database,
        connection_tasks.session_of_database_atomically,
        connection_tasks.session_of_another_wrapper,
    ],
)
def test_a_connection_cut_after_its_login_is_not_used_again(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, persistent: None, body: Any
) -> None:
    in_worker_threads(monkeypatch, cut)
    hit = body.using(max_attempts=2, backoff=tasks.AT_ONCE).enqueue()
    good = connection_tasks.session_of_database if body is connection_tasks.session_of_another_wrapper else body
    later = good.using(max_attempts=1).enqueue_many([((), {})] * 3)

    burst(threads=1)

    assert row_of(hit).status == Status.SUCCESSFUL
    assert [(row_of(result).status, row_of(result).executor_losses) for result in later] == [(Status.SUCCESSFUL, 0)] * 3


def test_a_connection_is_reset_after_a_body_that_ran_coroutines(burst: Burst) -> None:
    connection_tasks.look_at_connections_in_a_coroutine.enqueue()
    sessions = connection_tasks.session_of_database.enqueue_many([((), {})] * 2)

    burst(threads=1)

    assert {row_of(result).status for result in sessions} == {Status.SUCCESSFUL}


def test_no_write_is_lost_after_a_receiver_of_connections_failed(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, persistent: None
) -> None:
    """The receiver runs before ours, so that this connection is never announced to us."""
    failed: list[str] = []

    def receiver(**_: Any) -> None:
        if "-worker-" in (thread := threading.current_thread().name) and not failed:
            failed.append(thread)
            raise RuntimeError("a receiver of the site's")

    monkeypatch.setattr(connection_created, "receivers", list(connection_created.receivers))
    connection_created.connect(receiver)
    connection_created.receivers.insert(0, connection_created.receivers.pop())
    connection_tasks.session_of_database.using(max_attempts=1).enqueue()
    begun = connection_tasks.make_a_mess.using(max_attempts=1).enqueue("begins")
    written = atomic_tasks.write_one.using(max_attempts=1).enqueue("after")

    burst(threads=1)

    assert failed
    assert row_of(begun).status == Status.FAILED
    assert row_of(written).status == Status.SUCCESSFUL
    assert atomic_tasks.written() == ["after"]


@pytest.mark.parametrize("times", [1, 12])
def test_body_that_gets_no_connection_uses_no_attempt(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    left = [None] * times
    login = DatabaseWrapper.get_new_connection

    def refuse(self: DatabaseWrapper, parameters: dict[str, Any]) -> Any:
        if threading.current_thread().name.startswith("jobqueue-worker") and left:
            left.pop()
            raise psycopg.OperationalError("FATAL: sorry, too many clients already")
        return login(self, parameters)

    monkeypatch.setattr(DatabaseWrapper, "get_new_connection", refuse)
    result = connection_tasks.session_of_database.enqueue()
    start(threads=1, poll_interval=0.2)

    row = wait_for_status(result, Status.SUCCESSFUL)

    assert (row.attempts, row.errors, row.claim_number, left) == (0, [], times + 1, [])
    assert any("too many clients" in line for line in caplog.messages if line.startswith("task.released"))
