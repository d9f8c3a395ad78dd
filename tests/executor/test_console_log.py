"""The log of run_executors: one thread writes it, as text or JSON."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from django.core.management.color import no_style

from jobqueue.executor.telemetry.console_log import ConsoleHandler, JsonFormatter, TextFormatter

FORGED = "x\n13:59:59 CRITICAL\x1b[2J\u2028"


class Stream(io.StringIO):
    """A terminal that records the writing threads, and can block."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: set[threading.Thread] = set()
        self.ready = threading.Event()
        self.ready.set()

    def write(self, text: str) -> int:
        self.ready.wait()
        if "refused" in text:
            raise ValueError("I/O operation on closed file")
        self.writers.add(threading.current_thread())
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        return [line.split()[-1] for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def logger(stream: Stream, request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    handler = ConsoleHandler(getattr(request, "param", None) or TextFormatter(no_style()), stream)
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(handler)
    yield logger
    stream.ready.set()
    handler.close()


def test_another_thread_writes_records_in_order(logger: logging.Logger, stream: Stream) -> None:
    stream.ready.clear()
    for number in range(1000):
        logger.info("%d", number)  # does not wait for the terminal
    assert stream.getvalue() == ""

    stream.ready.set()
    logger.handlers[0].flush()  # as logging.shutdown() does
    logger.info("after the flush")
    logger.handlers[0].flush()

    assert stream.lines == [*map(str, range(1000)), "flush"]
    assert threading.current_thread() not in stream.writers


def test_closed_streams_do_not_end_the_writing_thread(
    logger: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(sys, "stderr", closed := io.StringIO())
    closed.close()

    logger.info("refused")
    logger.info("accepted")
    logger.handlers[0].flush()

    assert (stream.lines, errors) == (["accepted"], [])


def test_traceback_does_not_control_the_terminal(logger: logging.Logger, stream: Stream) -> None:
    try:
        raise ValueError("\x1b]0;pwned\x07\u2028")
    except ValueError:
        logger.exception("thread.failed")
    logger.handlers[0].flush()

    lines = stream.getvalue().split("\n")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2] == r"ValueError: \x1b]0;pwned\x07\u2028"


@pytest.mark.parametrize("logger", [JsonFormatter()], indirect=True)
def test_json_line_has_event_fields_and_traceback(logger: logging.Logger, stream: Stream) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("task.failed task=%s", "shop.pay", extra={"task_id": "1", "attempt": 2})
    logger.handlers[0].flush()

    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("+00:00")
    assert entry.pop("traceback").endswith(f"ValueError: {FORGED}")
    assert entry == {
        "level": "ERROR",
        "logger": "test",
        "event": "task.failed",
        "message": "task.failed task=shop.pay",
        "task_id": "1",
        "attempt": 2,
    }
