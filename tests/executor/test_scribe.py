"""The log of run_executors: lines that come fast are written together."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management.color import no_style

from jobqueue.executor import scribe as scribe_module
from jobqueue.executor.log import ExecutorLogger
from jobqueue.executor.scribe import Lines, Scribe, say
from tests.executor.harness import wait_for


class Stream(io.StringIO):
    """Counts the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        return [line.split()[-1] for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def logger(stream: Stream) -> Iterator[logging.Logger]:
    handler = Scribe(Lines(no_style()))
    handler.setStream(stream)
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_lines_that_come_fast_are_written_together_and_in_order(
    logger: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribe_module, "GAP_SECONDS", 0.05)
    for number in range(1000):
        logger.info("%d", number)

    wait_for(lambda: len(stream.lines) == 1000)  # the last ones too, though nobody says any more
    assert stream.lines == [str(number) for number in range(1000)]
    assert stream.writes < 100


def test_lines_that_come_now_and_again_are_written_by_one_thread(logger: logging.Logger, stream: Stream) -> None:
    writers: set[threading.Thread] = set()
    write = stream.write

    def note(text: str) -> int:
        writers.add(threading.current_thread())
        return write(text)

    stream.write = note  # type: ignore[method-assign]
    for number in range(10):
        logger.info("%d at once", number)
        logger.info("%d", number)
        wait_for(lambda last=str(number): stream.lines[-1] == last)  # type: ignore[misc]

    assert len(writers) == 2  # ours, and the one


def test_a_warning_is_written_at_once_after_what_came_before_it(
    logger: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribe_module, "GAP_SECONDS", 3600.0)
    logger.info("first")
    logger.info("second")
    assert stream.lines == ["first"]

    logger.warning("third")

    assert stream.lines == ["first", "second", "third"]


def test_the_end_of_the_program_leaves_nothing_unwritten(
    logger: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribe_module, "GAP_SECONDS", 3600.0)
    logger.info("first")
    logger.info("last")

    logger.handlers[0].flush()  # as logging.shutdown() does

    assert stream.lines == ["first", "last"]


def test_a_traceback_does_not_steer_the_terminal(logger: logging.Logger, stream: Stream) -> None:
    try:
        raise ValueError("\x1b]0;pwned\x07\u2028")
    except ValueError:
        logger.exception("worker.error")

    lines = stream.getvalue().split("\n")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2] == r"ValueError: \x1b]0;pwned\x07\u2028"


class TestSay:
    """Lines for which no record is made."""

    def test_a_line_is_what_a_record_would_give(self, logger: logging.Logger, stream: Stream) -> None:
        logger.warning("started %s in %.1fs", "a.task", 1.25)

        say(ExecutorLogger(logger), logging.WARNING, "started %s in %.1fs", "a.task", 1.25, extra=dict)

        first, second = stream.getvalue().splitlines()
        assert second[len("12:34:56") :] == first[len("12:34:56") :]

    def test_whoever_else_hears_it_gets_the_record_with_its_extra(self, logger: logging.Logger, stream: Stream) -> None:
        heard: list[logging.LogRecord] = []
        other = logging.Handler()
        other.emit = heard.append  # type: ignore[method-assign, assignment]
        logger.addHandler(other)

        say(ExecutorLogger(logger), logging.WARNING, "started %s", "a.task", extra=lambda: {"task_id": "1"})

        (record,) = heard
        assert (record.msg, record.args, record.__dict__["task_id"]) == ("started %s", ("a.task",), "1")
        assert record.funcName == "test_whoever_else_hears_it_gets_the_record_with_its_extra"
        assert stream.lines == ["a.task"]

    @pytest.mark.parametrize("hears", ["scribe", "both"])
    def test_a_name_cannot_forge_a_line(self, logger: logging.Logger, stream: Stream, hears: str) -> None:
        heard: list[str] = []
        if hears == "both":
            other = logging.Handler()
            other.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
            logger.addHandler(other)

        say(
            ExecutorLogger(logger),
            logging.WARNING,
            "started %s in %.1fs",
            "x\n13:59:59 CRITICAL\x1b[2J\u2028",
            1.0,
            extra=dict,
        )

        (line,) = stream.getvalue().splitlines()
        assert line.endswith(r"started x\n13:59:59 CRITICAL\x1b[2J\u2028 in 1.0s")
        assert heard in ([], [r"started x\n13:59:59 CRITICAL\x1b[2J\u2028 in 1.0s"])

    @pytest.mark.parametrize("filtered", ["logger", "handler"])
    def test_a_filter_is_asked(self, logger: logging.Logger, stream: Stream, filtered: str) -> None:
        place = logger if filtered == "logger" else logger.handlers[0]
        place.addFilter(lambda record: not hasattr(record, "secret"))

        say(ExecutorLogger(logger), logging.WARNING, "one", extra=lambda: {"secret": True})
        say(ExecutorLogger(logger), logging.WARNING, "two", extra=dict)

        assert stream.lines == ["two"]

    def test_a_record_factory_of_the_site_is_used(self, logger: logging.Logger, stream: Stream) -> None:
        ordinary = logging.getLogRecordFactory()

        def shouting(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = ordinary(*args, **kwargs)
            record.msg = str(record.msg).upper()
            return record

        logging.setLogRecordFactory(shouting)
        try:
            say(ExecutorLogger(logger), logging.WARNING, "one", extra=dict)
        finally:
            logging.setLogRecordFactory(ordinary)

        assert stream.lines == ["ONE"]

    def test_a_handler_of_a_higher_level_stays_silent(self, logger: logging.Logger, stream: Stream) -> None:
        logger.handlers[0].setLevel(logging.ERROR)

        say(ExecutorLogger(logger), logging.WARNING, "one", extra=dict)

        assert stream.getvalue() == ""

    def test_a_stream_that_is_gone_is_no_failure_of_the_caller(
        self, logger: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        complaints: list[logging.LogRecord] = []
        monkeypatch.setattr(logger.handlers[0], "handleError", complaints.append)
        stream.close()

        say(ExecutorLogger(logger), logging.WARNING, "one %d", 1, extra=dict)

        assert [record.getMessage() for record in complaints] == ["one 1"]
