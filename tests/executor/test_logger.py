"""Errors of the site's logging harm no task and no thread of the executor."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from jobqueue import Actor, Done, Spawn
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Burst, database_of, on_both_databases, on_postgresql, row_of

EVENTS = "jobqueue.executor.running.events"


class Broken(RuntimeError):
    """Raised by logging."""


def fail(record: logging.LogRecord) -> bool:
    raise Broken(record.getMessage())


def broken_filter() -> Iterator[None]:
    logging.getLogger(EVENTS).addFilter(fail)
    yield
    logging.getLogger(EVENTS).removeFilter(fail)


def broken_filter_of_a_handler() -> Iterator[None]:
    handler = logging.StreamHandler(io.StringIO())
    handler.addFilter(fail)
    logging.getLogger(EVENTS).addHandler(handler)
    yield
    logging.getLogger(EVENTS).removeHandler(handler)


def broken_factory() -> Iterator[None]:
    ordinary = logging.getLogRecordFactory()

    def factory(name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
        if name == EVENTS:
            raise Broken(name)
        return ordinary(name, *args, **kwargs)

    logging.setLogRecordFactory(factory)
    yield
    logging.setLogRecordFactory(ordinary)


@pytest.fixture(params=[broken_filter, broken_filter_of_a_handler, broken_factory])
def broken_logging(request: pytest.FixtureRequest) -> Iterator[None]:
    level = logging.getLogger(EVENTS).level
    logging.getLogger(EVENTS).setLevel(logging.DEBUG)
    yield from request.param()
    logging.getLogger(EVENTS).setLevel(level)


@on_postgresql
def test_tasks_run_if_logging_raises(burst: Burst, broken_logging: None, capsys: pytest.CaptureFixture[str]) -> None:
    good = [body.using(max_attempts=1).enqueue(1) for body in (tasks.add, tasks.add_later) for _ in range(3)]
    failing = tasks.fail.using(max_attempts=2).enqueue()

    running = burst(threads=2)

    assert {row_of(result).status for result in good} == {Status.SUCCESSFUL}
    row = row_of(failing)
    assert (row.status, row.attempts) == (Status.FAILED, 2)
    assert running.exit_code == 0
    errors = capsys.readouterr().err
    assert "--- Logging error ---" in errors
    assert "'task.started " in errors
    assert "Broken" in errors


class LeavesChild(Actor):
    """Ends before its child, whose message is dropped."""

    def poll(self, context: Any) -> Any:
        return Spawn(tasks.add, 1), Done()


class Raising(logging.Handler):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error(record.getMessage())


@pytest.mark.parametrize("error", [ValueError, RuntimeError, SystemExit])
@on_both_databases
def test_commit_succeeds_if_a_handler_raises_within_it(
    burst: Burst, backend: str, error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    parent = LeavesChild.using(backend=backend).enqueue()
    logger, handler = logging.getLogger("jobqueue"), Raising(error)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        burst(backend=backend)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

    child = Task.objects.using(database_of(parent)).get(parent_id=UUID(parent.id))
    assert (row_of(parent).status, child.status, child.claim_number) == (Status.SUCCESSFUL, Status.SUCCESSFUL, 1)
    assert "message.dropped" in capsys.readouterr().err
