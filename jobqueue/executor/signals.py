"""Signals, and other short news for a main thread that waits, as bytes in a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType

WAKE = 0  # look around
ORPHANED = 255  # the supervisor is gone
HANDLED = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGCONT,
        signal.SIGUSR1,
    }
)

_handled: set[int] = set()  # what a pipe of this process receives
_mask = threading.local()


class SignalPipeClosed(Exception):
    """A task has closed the pipe that signals come through. Its number may belong to another file now."""


class SignalPipe:
    """
    What happened since the last look, one byte each: the number of a signal, WAKE or ORPHANED.

    The handlers do nothing else: an exception, a log line or a lock in a handler may hit the process
    in the middle of a COMMIT. lifeline: a pipe that the supervisor holds open as long as it lives.
    """

    def __init__(self, *, lifeline: int | None = None) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lifeline = lifeline
        self.descriptors = [self._reader, self._writer] + ([] if lifeline is None else [lifeline])
        self._files = [file_of(descriptor) for descriptor in self.descriptors]

    @contextlib.contextmanager
    def installed(self, *more: signal.Signals) -> Iterator[SignalPipe]:
        """Receive signals; outside of the main thread, which alone can, only what wake() brings."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            numbers = HANDLED | {*more}
            if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                numbers -= {signal.SIGHUP}  # nohup
            before = {number: signal.signal(number, self._write) for number in numbers}
            _handled.update(numbers)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # a supervisor starts us with them blocked
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            _handled.difference_update(before)

    def wake(self) -> None:
        """Make read() return, from any thread."""
        self._write(WAKE, None)

    def _write(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # full: it will be read, and that is the point; closed: read() tells
            os.write(self._writer, bytes([number]))

    def read(self, timeout_seconds: float) -> bytes:
        """Wait for news; b"" when none came. Raises SignalPipeClosed if none can come any more."""
        sources = [self._reader] if self._lifeline is None else [self._reader, self._lifeline]
        try:
            ready, _, _ = select.select(sources, [], [], timeout_seconds)
            if [file_of(descriptor) for descriptor in self.descriptors] != self._files:
                raise OSError(errno.EBADF, "Its number is another file's")
            news = os.read(self._reader, 64) if self._reader in ready else b""
        except OSError as error:
            raise SignalPipeClosed(f"A task has closed the pipe for signals ({error.strerror})") from error
        if self._lifeline in ready:
            self._lifeline = None
            news += bytes([ORPHANED])
        return news

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Keep the signals that a SignalPipe handles pending in this thread, and in programs that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def file_of(descriptor: int) -> tuple[int, int]:
    """Tell a file apart from others that have the same number before and after it."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _before_fork() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _after_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_in_child() -> None:
    """
    Give signals their usual meaning again.

    A copy of us, such as a body makes with multiprocessing, has our handlers and our pipe: what ends the copy
    would stop the executor, and not the copy.
    """
    for number in _handled:
        signal.signal(number, signal.SIG_DFL)
    _handled.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
