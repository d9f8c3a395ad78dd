"""POSIX signals and other events for the main thread, as bytes in a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from jobqueue.values.posix import at_fork, signals

END_READ = 0  # another thread wants the main thread to look at its state
ORPHANED = 255  # the supervisor is gone
HANDLED = signals("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGCONT", "SIGUSR1")

_installed: set[int] = set()  # signals that a pipe of this process receives
_mask = threading.local()  # before: the thread's mask before a fork


class SignalPipeClosed(Exception):
    """A task has closed the pipe that signals come through. Its number may belong to another file now."""


class SignalPipe:
    """
    The events since the last read(), one byte each: the number of a signal, END_READ or ORPHANED.

    The handlers only write that byte. An exception, a log line or a lock in a handler could hit the process in the
    middle of a COMMIT. lifeline: a descriptor that reaches its end of file when the supervisor is gone.
    """

    def __init__(self, *, lifeline: int | None = None) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lifeline = lifeline
        self.descriptors = [self._reader, self._writer] + ([] if lifeline is None else [lifeline])
        self._files = [file_identity(descriptor) for descriptor in self.descriptors]

    @contextlib.contextmanager
    def installed(self, *more: signal.Signals) -> Iterator[SignalPipe]:
        """Receive signals. Outside of the main thread Python allows no handlers, and only end_read() arrives."""
        before, mask = {}, None
        if threading.current_thread() is threading.main_thread():
            numbers = HANDLED | {*more}
            if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                numbers -= {signal.SIGHUP}  # nohup
            before = {number: signal.signal(number, self._write) for number in numbers}
            _installed.update(numbers)
            mask = signal.pthread_sigmask(
                signal.SIG_UNBLOCK, HANDLED
            )  # a supervisor starts its children with them blocked
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            _installed.difference_update(before)
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def end_read(self) -> None:
        """Make read() return, from any thread."""
        self._write(END_READ, None)

    def _write(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes read() anyway, and read() notices a closed one
            os.write(self._writer, bytes([number]))

    def read(self, timeout_seconds: float) -> bytes:
        """Wait for events, and return b"" if none came. Raises SignalPipeClosed."""
        sources = select.poll()  # select.select() takes no descriptor above 1,023
        for descriptor in (self._reader, self._lifeline):
            if descriptor is not None:
                sources.register(descriptor, select.POLLIN)
        try:
            ready = {descriptor for descriptor, _ in sources.poll(1000 * timeout_seconds)}
            if [file_identity(descriptor) for descriptor in self.descriptors] != self._files:
                raise OSError(errno.EBADF, "Its number belongs to another file")
            events = os.read(self._reader, 64) if self._reader in ready else b""
        except OSError as error:
            raise SignalPipeClosed(f"A task has closed the pipe for signals ({error.strerror})") from error
        if self._lifeline in ready:
            self._lifeline = None
            events += bytes([ORPHANED])
        return events

    def close(self) -> None:
        """Close the pipe, unless a task has. A thread that still calls end_read() writes nowhere."""
        self._reader = self._writer = -1
        for descriptor, file in list(zip(self.descriptors, self._files, strict=True))[:2]:  # the lifeline is not ours
            with contextlib.suppress(OSError):
                if file_identity(descriptor) == file:
                    os.close(descriptor)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Keep the signals that a SignalPipe handles pending in this thread, and in programs that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def file_identity(descriptor: int) -> tuple[int, int]:
    """Return device and inode of a descriptor. Another file may get the same descriptor later."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _before_fork() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _installed)


def _after_fork_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_fork_in_child() -> None:
    """
    Give signals their usual meaning again in a fork, such as multiprocessing makes for a task.

    The fork has our handlers and our pipe, so a signal that should end the fork would stop the executor instead.
    Signals are blocked until here, because a task may end its fork at once.
    """
    for number in _installed:
        signal.signal(number, signal.SIG_DFL)
    _installed.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
