"""How an exception is written into a row: from the body's own first frame on, bounded, storable."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from jobqueue.engine.clock import written
from jobqueue.executor.hold import Hold
from jobqueue.printable import printable
from jobqueue.serialization.text import clean_text, escape

TRACEBACK_CHARACTERS = 16_000
MESSAGE_CHARACTERS = 2_000
PATH_CHARACTERS = 500
EXECUTOR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep

Error = TypeVar("Error", bound=BaseException)
Mask: TypeAlias = Callable[[str], str]  # before a text is cut: half a secret would not be found


def from_the_body(error: Error) -> Error:
    """
    Leave out our own frames, which lead to the body's.

    They also hold on to the exception: with them, all that a failed body had in its hands would
    live until the next collection of garbage.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(EXECUTOR_FOLDER):
        frames = frames.tb_next
    return error.with_traceback(frames)


def error_text(hold: Hold, error: BaseException, executor_name: str) -> str:
    """Write one entry of the `errors` column; works for exceptions that cannot even be printed."""
    return json.dumps(
        {
            "attempt": hold.claimed.attempts + 1,
            "at": written(hold.now()),
            "executor": executor_name,
            "exception_class_path": path_of(error),
            "message": message_of(error),
            "traceback": traceback_of(error),
        }
    )


def is_starved(error: BaseException) -> bool:
    """Whether this process has no memory, or may start no thread, whatever it does."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def path_of(error: BaseException) -> str:
    kind = type(error)
    try:
        return clean_text(f"{kind.__module__}.{kind.__qualname__}", PATH_CHARACTERS)
    except BaseException:  # noqa: BLE001 - a metaclass of the user's may raise anything
        return name_of(error)


def name_of(error: BaseException) -> str:
    """Give the name of its class, past whatever a metaclass makes of `__name__`."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return escape(name)


def message_of(error: BaseException, mask: Mask = str) -> str:
    try:
        return clean_text(mask(str(error)), MESSAGE_CHARACTERS)
    except BaseException as failure:  # noqa: BLE001 - a __str__ of the user's may raise anything
        return f"<the message of this {name_of(error)} cannot be read: {name_of(failure)}>"


def first_line_of(error: BaseException, mask: Mask = str) -> str:
    """Give what fits into a line of the log."""
    message = message_of(error, mask).strip().partition("\n")[0]
    return printable(mask(f"{name_of(error)}: {message}") if message else name_of(error))


def traceback_of(error: BaseException, mask: Mask = str) -> str:
    return clean_text(mask(full_traceback(error)), TRACEBACK_CHARACTERS)


def full_traceback(error: BaseException) -> str:
    """Give the whole traceback, with all causes."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failure:  # noqa: BLE001 - as above
        return f"{name_of(error)} <its traceback cannot be read: {name_of(failure)}>\n"
