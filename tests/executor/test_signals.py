"""The pipe that signals come through, also after a task has closed it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from jobqueue.executor.signals import END_READ, SignalPipe, SignalPipeClosed


@pytest.fixture
def pipe() -> Iterator[SignalPipe]:
    pipe = SignalPipe()
    yield pipe
    for descriptor in pipe.descriptors:
        with suppress(OSError):  # some tests have closed one
            os.close(descriptor)


def test_signal_pipe_delivers_events(pipe: SignalPipe) -> None:
    pipe.end_read()

    assert pipe.read(60.0) == bytes([END_READ])
    assert pipe.read(0.0) == b""


@pytest.mark.parametrize("end", [0, 1])
def test_signal_pipe_reports_that_it_was_closed(pipe: SignalPipe, end: int) -> None:
    os.close(pipe.descriptors[end])

    with pytest.raises(SignalPipeClosed, match="A task has closed the pipe"):
        pipe.read(0.0)


@pytest.mark.parametrize("end", [0, 1, 2])
def test_signal_pipe_never_reads_a_file_that_reuses_its_number(end: int) -> None:
    """The next connection gets the number of the closed file."""
    lifeline, held = os.pipe()
    pipe = SignalPipe(lifeline=lifeline)
    theirs, writer = os.pipe()
    os.write(writer, b"\x0f")  # SIGTERM, if it were a signal
    os.dup2(theirs, pipe.descriptors[end])

    with pytest.raises(SignalPipeClosed):
        pipe.read(0.0)

    assert os.read(theirs, 9) == b"\x0f"
    for descriptor in (*pipe.descriptors, held, theirs, writer):
        os.close(descriptor)
