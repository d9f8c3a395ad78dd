"""A connection that hangs is cut off by another thread, and stays its owner's: libpq would free it under his call."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction

from jobqueue.executor.database.connection import GuardedConnection, shutdown_socket
from jobqueue.executor.database.task_connections import TaskConnections
from tests.executor.harness import DEADLINE, wait_for
from tests.executor.tasks import backend_pid

pytestmark = pytest.mark.django_db(transaction=True)


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
        wait_for(lambda: is_asleep(waiter.pid), "a call that waits")
        yield waiter
        waiter.join(DEADLINE)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [waiter.pid])
    assert isinstance(waiter.error, OperationalError)
    assert waiter.has_connection


def is_asleep(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid])
        return (True,) in cursor.fetchall()


def test_the_call_that_waits_fails_and_keeps_its_connection() -> None:
    with waiting() as waiter:
        shutdown_socket(waiter.raw)


def test_closed_connection_is_left_alone() -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    connection.close()

    with pytest.raises(psycopg.OperationalError, match="closed"):
        shutdown_socket(raw)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_socket_that_is_anothers_by_now_is_left_alone() -> None:
    """The number was reused between the two checks."""
    ours, peer = socket.socketpair()
    with ours, peer:
        numbers, before = iter([ours.fileno(), -1]), open_files()

        shutdown_socket(SimpleNamespace(fileno=lambda: next(numbers)))

        ours.send(b"x")
        assert peer.recv(1) == b"x"
        assert open_files() == before


def test_file_with_a_reused_number_is_logged_and_left_alone(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        before = open_files()
        with pytest.raises(OSError, match="socket"):
            shutdown_socket(file)
        file.write("x")
        assert open_files() == before


def test_a_line_that_hangs_is_cut() -> None:
    line = GuardedConnection("loop", "default", limit_seconds=0.0)

    with waiting(lambda: line):
        assert line.cut_if_hung()


def test_a_line_that_is_answered_in_time_is_not() -> None:
    with GuardedConnection("loop", "default", limit_seconds=DEADLINE) as line, connection.cursor() as cursor:
        assert not line.cut_if_hung()
        cursor.execute("SELECT 1")


def test_the_connections_of_a_body_that_does_not_stop_are_cut() -> None:
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
                assert is_truncated.wait(DEADLINE)
                cursor.execute("CREATE TABLE written (by_whom text)")
        except Exception as error:  # noqa: BLE001 - the driver may raise anything
            errors.append(error)
        finally:
            session.leave()

    thread = threading.Thread(target=body)
    thread.start()
    assert is_open.wait(DEADLINE)
    session.cut()
    is_truncated.set()
    thread.join(DEADLINE)

    assert [type(error).__module__ for error in errors] == ["django.db.utils"]
    assert "written" not in connections["sqlite"].introspection.table_names()
