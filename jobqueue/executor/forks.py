"""A copy of the executor that a body has forked ends where the body does."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

ERROR_CODE = 1


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """
    End this process if it is not the one with that number.

    A child that returns from a body, or leaves it by sys.exit(), holds a copy of the executor's claims and database
    connections. It must not go on with them. error: what the body raised in the child, which decides the exit code.
    Handlers of atexit do not run: they are the executor's.
    """
    if os.getpid() == pid:
        return
    try:
        code = _exit_code(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    except BaseException:  # noqa: BLE001 - whatever it is, this process must end
        code = ERROR_CODE
    os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    """Give the code that Python would end with; it prints what is no code."""
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
