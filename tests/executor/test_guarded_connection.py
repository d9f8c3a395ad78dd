"""The connections of the executor's own threads, and how another thread cuts a hung connection."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from jobqueue.engine import engine_for
from jobqueue.engine.postgres.connection import PostgresDatabase, statement
from jobqueue.executor.database.connection import PREPARE_AT, GuardedConnection, ReconnectBackoff, shutdown_socket
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.values.states import Status
from tests.engine.bench import outcome
from tests.engine.conftest import make_bench
from tests.executor.connection_tasks import backend_pid
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh_connection() -> Iterator[None]:
    connection.close()
    connection.ensure_connection()
    yield
    connection.close()


def settings_of(guarded: GuardedConnection) -> tuple[object, int | None]:
    with guarded, connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        return cursor.fetchone()[0], connection.connection.prepare_threshold


def test_statements_are_prepared_and_planned_once() -> None:
    assert settings_of(GuardedConnection("loop", "default", 10.0, prepares=True)) == ("force_generic_plan", PREPARE_AT)


def test_connection_that_prepares_nothing_is_left_alone() -> None:
    assert settings_of(GuardedConnection("heartbeat", "default", 10.0)) == ("auto", None)


def test_nothing_is_prepared_behind_a_pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that a pooler sent at login belongs to another session."""
    monkeypatch.setattr(
        "jobqueue.engine.postgres.connection.statement", lambda name: {"identify_session": "SELECT 0, ''"}[name]
    )

    assert settings_of(GuardedConnection("loop", "default", 10.0, prepares=True)) == ("auto", None)


def test_server_side_binding_leaves_statements_of_the_orm_unprepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generic plan of the ORM's `status = $1` cannot use a partial index: each rescue read the whole table."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.ensure_connection()
    bench = make_bench("postgresql")
    prepared = "SELECT statement FROM pg_prepared_statements WHERE parameter_types <> '{}'"

    with GuardedConnection("loop", "default", 10.0, prepares=True), connection.cursor() as cursor:
        for _ in range(2 * PREPARE_AT):
            bench.commit(outcome(bench.running()))
            bench.engine.executors.rescue()
        cursor.execute(prepared)
        texts = [text for (text,) in cursor.fetchall()]

    assert any("jobqueue_task" in text for text in texts)
    assert not [text for text in texts if '"jobqueue_task"' in text]


@pytest.mark.parametrize(("level", "transactions"), [("read committed", 0), ("repeatable read", 2)])
def test_claim_and_plain_commit_need_no_transaction_in_autocommit(
    monkeypatch: pytest.MonkeyPatch, level: str, transactions: int
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{level}'")
    bench, begin = make_bench("postgresql"), PostgresDatabase.transaction
    pk, begun = bench.add(), []

    def count(db: PostgresDatabase) -> AbstractContextManager[None]:
        begun.append(db)
        return begin(db)

    monkeypatch.setattr(PostgresDatabase, "transaction", count)
    with GuardedConnection("loop", "default", 10.0, prepares=True):
        (claimed,) = bench.claim()
        assert bench.commit(outcome(claimed)).done == {pk: Status.SUCCESSFUL}

    assert len(begun) == transactions
    connection.close()
    assert bench.status(pk) == "SUCCESSFUL"


def test_claim_in_a_callers_transaction_is_undone_with_it() -> None:
    bench = make_bench("postgresql")
    pk = bench.add()
    with GuardedConnection("loop", "default", 10.0, prepares=True), transaction.atomic():
        assert bench.claim_ids() == [pk]
        transaction.set_rollback(True)

    assert bench.status(pk) == "READY"


class Waiter(threading.Thread):
    """Waits for an answer that takes longer than any test, and records the error."""

    def __init__(self, around: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(daemon=True)
        self._around = around
        self.raw: Any = None
        self.pid = 0  # of the session, which goes on asleep when its client is gone
        self.error: Exception | None = None
        self.has_connection = False

    def run(self) -> None:
        try:
            with self._around(), connection.cursor() as cursor:
                self.raw, self.pid = connection.connection, backend_pid()
                cursor.execute("SELECT pg_sleep(3600)")
        except Exception as error:  # noqa: BLE001 - the driver may raise anything
            self.error = error
            self.has_connection = self.raw.pgconn.pgconn_ptr is not None
        finally:
            connections.close_all()


@contextmanager
def waiting(around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Iterator[Waiter]:
    """Yield a thread that waits for the server. The block must shut its connection down."""
    waiter = Waiter(around)
    waiter.start()
    try:
        wait_until(lambda: is_asleep(waiter.pid), "a call that waits")
        yield waiter
        waiter.join(DEADLINE_SECONDS)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [waiter.pid])
    assert isinstance(waiter.error, OperationalError)
    assert waiter.has_connection


def is_asleep(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid])
        return (True,) in cursor.fetchall()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_file_with_a_reused_number_is_logged_and_left_alone(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        before = open_files()
        with pytest.raises(OSError, match="socket"):
            shutdown_socket(file)
        file.write("x")
        assert open_files() == before


def test_hung_connection_is_cut() -> None:
    guarded = GuardedConnection("loop", "default", limit_seconds=0.0)

    with waiting(lambda: guarded):
        assert guarded.cut_if_hung()


def test_connections_of_a_body_that_does_not_stop_are_cut() -> None:
    session = TaskConnections()

    @contextmanager
    def entered() -> Iterator[None]:
        session.enter()
        yield

    with waiting(entered):
        session.cut()


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
def test_a_body_on_sqlite_can_write_no_more() -> None:
    session, is_open, is_truncated = TaskConnections(), threading.Event(), threading.Event()
    errors: list[Exception] = []

    def body() -> None:
        session.enter()
        try:
            with transaction.atomic(using="sqlite"), connections["sqlite"].cursor() as cursor:
                is_open.set()
                assert is_truncated.wait(DEADLINE_SECONDS)
                cursor.execute("CREATE TABLE written (by_whom text)")
        except Exception as error:  # noqa: BLE001 - the driver may raise anything
            errors.append(error)
        finally:
            session.leave()

    thread = threading.Thread(target=body)
    thread.start()
    assert is_open.wait(DEADLINE_SECONDS)
    session.cut()
    is_truncated.set()
    thread.join(DEADLINE_SECONDS)

    assert [type(error).__module__ for error in errors] == ["django.db.utils"]
    assert "written" not in connections["sqlite"].introspection.table_names()


def test_wait_for_an_unreachable_database_grows_to_two_seconds() -> None:
    backoff = ReconnectBackoff()
    waits = [backoff.next_seconds() for _ in range(100)]

    assert 0.0375 <= waits[0] <= 0.05
    assert 1.5 <= min(waits[10:]) <= max(waits) <= 2.0
    backoff.reset()
    assert backoff.next_seconds() <= 0.05


@pytest.mark.parametrize("pooled", [False, True], ids=["alone", "pooled"])
def test_no_transaction_waits_long_for_a_lock(monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    if pooled:
        monkeypatch.setattr("jobqueue.engine.postgres.connection.statement", as_behind_a_pooler(statement))
    guarded, engine = GuardedConnection("loop", "default", 10.0), engine_for("default")
    limits = []

    for _ in range(2):
        with guarded, engine.db.transaction(), connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            limits.append(cursor.fetchone())
        connection.close()

    assert limits == [("500ms",)] * 2


def as_behind_a_pooler(statement: Callable[[str], str]) -> Callable[[str], str]:
    return lambda name: "SELECT 0, ''" if name == "identify_session" else statement(name)
