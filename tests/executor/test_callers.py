"""`run_executors` called from a program or a test: it works, or refuses before it changes anything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections, transaction

from jobqueue.conf.compat import PACKAGE
from tests.executor import tasks
from tests.executor.harness import row_of

INSTEAD = r"jobqueue\.testing\.run_until_idle\(\)"


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Undo what the command sets for its process: later tests read the log of the tasks framework."""
    framework = logging.getLogger(PACKAGE)
    level = framework.level
    yield
    framework.setLevel(level)


def run_executors(**options: Any) -> None:
    call_command("run_executors", burst=True, stdout=StringIO(), stderr=StringIO(), **options)


@pytest.mark.django_db(databases=["default", "sqlite"])
@pytest.mark.parametrize("backend", ["default", "sqlite"])
def test_run_executors_in_a_transaction_refuses_and_leaves_it_alone(backend: str) -> None:
    result = tasks.add.using(backend=backend).enqueue(1)

    with pytest.raises(CommandError, match=f"cannot run inside a transaction.*{INSTEAD}"):
        run_executors(backend=backend)

    assert row_of(result).status == "READY"


@pytest.mark.django_db(transaction=True)
def test_run_executors_without_autocommit_refuses() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(CommandError, match="cannot run inside a transaction"):
            run_executors()
    finally:
        transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
@pytest.mark.parametrize("in_thread", [False, True])
def test_run_executors_on_sqlite_in_memory_refuses(monkeypatch: pytest.MonkeyPatch, in_thread: bool) -> None:
    monkeypatch.setattr("django.db.backends.sqlite3.base.DatabaseWrapper.is_in_memory_db", lambda self: True)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_executors(backend="sqlite")
        except CommandError as error:
            errors.append(error)

    if in_thread:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()

    (error,) = errors
    assert "SQLite in memory" in str(error)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{"processes": 2}, {"reload": True}], ids=str)
def test_run_executors_in_a_test_starts_no_processes(options: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match=f"database of the settings.*{INSTEAD}"):
        run_executors(**options)


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
@pytest.mark.parametrize("backend", ["default", "sqlite"])
def test_run_executors_keeps_the_connection_of_its_caller(backend: str) -> None:
    result = tasks.add.using(backend=backend).enqueue(1)
    before = connections[backend].connection

    run_executors(backend=backend)

    assert row_of(result).status == "SUCCESSFUL"
    assert connections[backend].connection is before
    assert connection.vendor == "postgresql"
