"""The log of run_executors: lines that come fast are written together."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from django.core.management.color import no_style

from jobqueue.executor import scribe as scribe_module
from jobqueue.executor.scribe import Lines, Scribe
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
