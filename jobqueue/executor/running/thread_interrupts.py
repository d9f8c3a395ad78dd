"""Raise an exception in a body's thread, but not at a line where it would leave a lock locked for ever."""

from __future__ import annotations

import ctypes
import dis
import logging
import logging.handlers
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FunctionType

WAIT_SECONDS = 0.05  # for the thread to leave such a line; the watchdog tries again later
STEP_SECONDS = 0.001

CALLS = {"acquire", "release", "_acquireLock", "_releaseLock"}
ENTRIES = (threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__)
IMPORTS = "<frozen importlib._bootstrap>"  # it takes the lock of each module by a call, too


def _functions(owner: object) -> Iterator[CodeType]:
    for value in vars(owner).values():
        if isinstance(value, FunctionType):
            yield value.__code__
        elif isinstance(value, type) and value.__module__.startswith("logging"):
            yield from _functions(value)


def _lines_with_calls(code: CodeType) -> frozenset[int]:
    """Return the lines that take or release a lock; all lines of a function that does nothing else."""
    if code.co_name in CALLS or code in ENTRIES:
        return frozenset(line for _, _, line in code.co_lines() if line is not None)
    instructions = dis.get_instructions(code)
    lines = {
        instruction.positions.lineno
        for instruction in instructions
        if instruction.argval in CALLS and instruction.positions is not None
    }
    return frozenset(line for line in lines if line is not None)


# Lines of the standard library that take or release a lock by a call. An exception right behind acquire(), or in
# front of release(), skips their `try`. A log handler would then stop every thread of the process that logs. Between
# the two an exception is safe: a body that only logs is there most of the time, waiting for a stream.
UNSAFE = {
    code: lines
    for code in [*ENTRIES, *(code for module in (logging, logging.handlers) for code in _functions(module))]
    if (lines := _lines_with_calls(code))
}


def interrupt_thread(ident: int, reason: type[BaseException]) -> bool:
    """Raise an exception in a thread at its next line. Return whether it could be done soon."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while not _is_safe(ident):
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(STEP_SECONDS)
    _set_exception(ctypes.c_ulong(ident), ctypes.py_object(reason))
    return True


def clear_thread(ident: int) -> None:
    """Clear an exception that has not been raised yet."""
    _set_exception(ctypes.c_ulong(ident), None)


def _is_safe(ident: int) -> bool:
    """Return whether an exception may arrive at the line where the thread is. The next call of a function raises it."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return True
    return frame.f_lineno not in UNSAFE.get(frame.f_code, ()) and frame.f_code.co_filename != IMPORTS


_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
