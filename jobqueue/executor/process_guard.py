"""Guard the process against bodies that fork it or close the standard streams."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

from jobqueue.values.posix import at_fork

ERROR_CODE = 1
LAST_STANDARD_STREAM = 2

_process = object()  # stands for this process; a fork has another


def this_process() -> object:
    """Return a token that differs in a forked child. os.getpid() would cost a system call each time."""
    return _process


def _after_in_child() -> None:
    global _process
    _process = object()


at_fork(after_in_child=_after_in_child)


def leave_if_forked(process: object, error: BaseException | None = None) -> None:
    """
    End this process if it is a copy of the given one.

    A child that returns from a body, or leaves it by sys.exit(), holds a copy of the executor's claims and database
    connections. It must not continue with them. error: what the body raised in the child; it decides the exit code.
    Handlers of atexit belong to the executor and do not run.
    """
    if process is _process:
        return
    try:
        code = _exit_code(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    except BaseException:  # noqa: BLE001 - this process must end in any case
        code = ERROR_CODE
    os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    """Return the exit code that Python would use. Print an error or a text, as Python does."""
    match error:
        case None | SystemExit(code=None):
            return os.EX_OK
        case SystemExit(code=int(code)):
            return code & 0xFF
        case SystemExit(code=text):
            sys.stderr.write(f"{text}\n")
        case _:
            traceback.print_exception(error)
    return ERROR_CODE


def fill_standard_streams() -> None:
    """
    Open /dev/null in place of each standard stream that is closed.

    Otherwise the next connection gets its number, and the site's output could be written into it.
    """
    for number in range(LAST_STANDARD_STREAM + 1):
        try:
            os.get_inheritable(number)  # keeps Python's lock, which fcntl.fcntl() and os.fstat() release
        except OSError:
            with contextlib.suppress(OSError):  # too many files are open
                _open_null_as(number)


def _open_null_as(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, unless another thread is faster
    if opened == number:
        os.set_inheritable(number, True)
    else:
        os.close(opened)
