"""The pipe that signals come through, also after a task has closed it."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import suppress

import pytest

from jobqueue.executor.signals import END_READ, ORPHANED, SignalPipe, SignalPipeClosed


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


def test_signal_pipe_of_a_process_with_many_files_delivers_events() -> None:
    high = 2000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= high:
        pytest.skip("this process may not open so many files")
    reader, held = os.pipe()
    pipe = SignalPipe(lifeline=fcntl.fcntl(reader, fcntl.F_DUPFD, high))
    pipe.end_read()

    assert pipe.read(60.0) == bytes([END_READ])
    assert pipe.read(0.0) == b""
    os.close(held)
    assert pipe.read(60.0) == bytes([ORPHANED])
    for descriptor in (*pipe.descriptors, reader):
        os.close(descriptor)


@pytest.mark.parametrize("end", [0, 1])
def test_closed_signal_pipe_takes_no_file_that_reuses_its_number(pipe: SignalPipe, end: int) -> None:
    theirs, writer = os.pipe()
    os.dup2(theirs, pipe.descriptors[end])

    pipe.close()
    pipe.close()
    pipe.end_read()

    os.fstat(pipe.descriptors[end])
    for descriptor in (theirs, writer):
        os.close(descriptor)
