"""End a forked copy of the executor when the body ends that forked it."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

ERROR_CODE = 1


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """
    End this process if its id is not `pid`.

    A child that returns from a body, or leaves it by sys.exit(), holds a copy of the executor's claims and database
    connections. It must not use them. error: what the body raised in the child. It decides the exit code.
    Handlers of atexit do not run, because they belong to the executor.
    """
    if os.getpid() == pid:
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
