"""Errors of the site's logging harm no task and no thread of the executor."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
from django.core.management.color import no_style

from jobqueue import Actor, Done, Spawn
from jobqueue.executor.telemetry.console_log import ConsoleHandler, JsonFormatter, TextFormatter
from jobqueue.management.commands.run_executors import log_only_to
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Burst, database_of, on_both_databases, on_postgresql, row_of

EVENTS = "jobqueue.executor.running.events"
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[ T][\d:.+]+|(wait|duration)_ms\"?[:=] ?[\d.]+|\"executor\": \"[^\"]*\"|\"task_id\": \"[^\"]*\""
)


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
    """Ends before its child. The message of the child is dropped."""

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


def only_console() -> logging.Logger:
    """Remove the handlers of pytest, which are added before the body of a test."""
    ours = logging.getLogger("jobqueue")
    for handler in [*ours.handlers]:
        if not isinstance(handler, ConsoleHandler):
            ours.removeHandler(handler)
    return ours


class TestConsole:
    """The console of `run_executors` gets the lines of successes without records, unless the site sees these, too."""

    @pytest.fixture(params=["text", "json"])
    def stream(self, request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
        stream = io.StringIO()
        formatter = JsonFormatter() if request.param == "json" else TextFormatter(no_style())
        handler = ConsoleHandler(formatter, stream)
        with ExitStack() as undo:
            log_only_to(handler, logging.getLogger("jobqueue"), logging.INFO, undo)
            yield stream
        handler.close()

    @staticmethod
    def line(stream: io.StringIO, result: Any) -> str:
        logging.getLogger("jobqueue").handlers[0].flush()
        (line,) = [line for line in stream.getvalue().splitlines() if f"id={result.id}" in line]
        return TIMES.sub("", line)

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the messages of records that are made."""
        made: list[str] = []

        class Recorded(logging.LogRecord):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                made.append(self.getMessage())

        monkeypatch.setattr(logging, "LogRecord", Recorded)
        monkeypatch.setattr(logging, "_logRecordFactory", Recorded)
        return made

    @on_postgresql
    def test_line_is_the_same_as_that_of_a_record(
        self, burst: Burst, stream: io.StringIO, made: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        only_console()
        quick = tasks.add.enqueue(1)
        burst(threads=1)
        assert not [message for message in made if message.startswith("task.succeeded")]
        monkeypatch.setattr(logging, "_logRecordFactory", lambda *args, **kwargs: logging.LogRecord(*args, **kwargs))
        slow = tasks.add.enqueue(1)
        burst(threads=1)

        assert [message for message in made if message.startswith("task.succeeded")]
        lines = [self.line(stream, result).replace(str(result.id), "") for result in (quick, slow)]
        assert lines[0] == lines[1]
        assert "task.succeeded" in lines[0]

    @on_postgresql
    @pytest.mark.parametrize(
        "tool",
        ["handler", "filter of the handler", "method of the handler", "filter of the logger", "replaced method"],
    )
    def test_tool_of_the_site_gets_a_record_with_all_fields(
        self,
        burst: Burst,
        stream: io.StringIO,
        tool: str,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> None:
        seen: list[logging.LogRecord] = []

        class Collector(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                seen.append(record)

        def collect(record: logging.LogRecord) -> bool:
            seen.append(record)
            return True

        ours = only_console()
        match tool:
            case "handler":
                ours.addHandler(collector := Collector())
                request.addfinalizer(lambda: ours.removeHandler(collector))
            case "filter of the handler":
                monkeypatch.setattr(ours.handlers[0], "filters", [collect])
            case "method of the handler":
                handle = ours.handlers[0].handle
                monkeypatch.setattr(ours.handlers[0], "handle", lambda record: (collect(record), handle(record)))
            case "filter of the logger":
                logger = logging.getLogger(EVENTS)
                monkeypatch.setattr(logger, "filters", [*logger.filters, collect])
            case _:
                original = logging.Logger.callHandlers
                monkeypatch.setattr(
                    logging.Logger, "callHandlers", lambda self, record: (collect(record), original(self, record))
                )

        result = tasks.add.enqueue(1)
        burst(threads=1)

        (record,) = [record for record in seen if record.getMessage().startswith("task.succeeded")]
        fields = vars(record)
        assert fields["task_id"] == str(result.id)
        assert {"task", "queue", "attempt", "wait_ms", "duration_ms", "executor", "status"} <= fields.keys()
        assert "task.succeeded" in self.line(stream, result)

    @on_postgresql
    def test_level_of_the_console_holds_for_tasks_that_succeed(
        self, burst: Burst, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        console = only_console().handlers[0]
        monkeypatch.setattr(console, "level", logging.WARNING)
        tasks.add.enqueue(1)

        burst(threads=1)

        console.flush()
        assert "task.succeeded" not in stream.getvalue()
