"""End a forked copy of the executor when the body ends that forked it."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

ERROR_CODE = 1


_process = object()  # stands for this process; a fork has another


def this_process() -> object:
    """Return what stands for this process, to be compared later. os.getpid() would cost a system call each time."""
    return _process


def _after_in_child() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_after_in_child)


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
