"""`run_executors` called from a program or a test: it works, or refuses before it changes anything."""

from __future__ import annotations

import faulthandler
import gc
import locale
import logging
import os
import signal
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils import translation
from django.utils.log import AdminEmailHandler

from jobqueue.conf.compat import PACKAGE
from jobqueue.executor.exit_status import EXIT_REPLACE
from jobqueue.executor.process import ExecutorProcess
from tests.executor import tasks
from tests.executor.harness import row_of

INSTEAD = r"jobqueue\.testing\.run_until_idle\(\)"


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


LOGGERS = ("root", "jobqueue", PACKAGE, "django.db.backends")


def logging_of_process() -> list[Any]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    return [
        [
            (logger.level, logger.propagate, logger.disabled, [*logger.handlers], [*logger.filters])
            for logger in loggers
        ],
        [(handler.level, [*handler.filters]) for handler in handlers],
    ]


def state_of_process() -> dict[str, Any]:
    """Return what a program may have set up in its process."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {
        "logging": logging_of_process(),
        "receivers": len(connection_created.receivers),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "faulthandler": faulthandler.is_enabled(),
        "environment": dict(os.environ),
        "locale": (locale.setlocale(locale.LC_ALL), translation.get_language(), time.tzname),
        "folder": Path.cwd(),
        "pipes": len([link for link in links if link.startswith("pipe:")]),
        "interval": sys.getswitchinterval(),
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"verbosity": 3}, {"queue": [("typo", None), ("typo", 3)]}], ids=str)
@pytest.mark.parametrize("has_handler", [False, True], ids=["no handler", "emails"])
def test_run_executors_leaves_the_process_of_its_caller_unchanged(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], has_handler: bool
) -> None:
    """Also after an error that the command finds when it has changed something."""
    tasks.fail.using(max_attempts=1).enqueue()
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.getLogger("jobqueue"), "handlers", [AdminEmailHandler()] if has_handler else [])
    before, frozen = state_of_process(), gc.get_freeze_count()

    if "queue" in options:
        with pytest.raises(CommandError, match="named twice"):
            run_executors(**options)
    else:
        run_executors(**options)

    assert state_of_process() == before
    assert gc.get_freeze_count() <= frozen
    assert "jobqueue" not in {thread.name.partition("-")[0] for thread in threading.enumerate()}


@pytest.mark.django_db(transaction=True)
def test_run_executors_with_a_stuck_task_does_not_replace_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *command: replaced.append(command))
    run = ExecutorProcess.run
    monkeypatch.setattr(ExecutorProcess, "run", lambda self: run(self) + EXIT_REPLACE)

    with pytest.raises(CommandError, match="a task does not stop"):
        run_executors()

    assert replaced == []
