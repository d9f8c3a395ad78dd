"""Exceptions as text, for rows and for the log: bounded, and without the executor's own frames."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from jobqueue.printable import printable
from jobqueue.serialization.text import clean_text, escape

TRACEBACK_CHARACTERS = 16_000
MESSAGE_CHARACTERS = 2_000
PATH_CHARACTERS = 500
EXECUTOR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep

Error = TypeVar("Error", bound=BaseException)
Mask: TypeAlias = Callable[[str], str]  # applied before a text is cut, since half a secret would not be found


def from_the_body(error: Error) -> Error:
    """
    Remove the executor's frames, which lead to the body's.

    These frames refer to the exception, so that the body's values would live until the next garbage collection.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(EXECUTOR_FOLDER):
        frames = frames.tb_next
    return error.with_traceback(frames)


def is_starved(error: BaseException) -> bool:
    """Whether this process is out of memory or cannot start another thread."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def path_of(error: BaseException) -> str:
    """Return the dotted path of the exception's class."""
    kind = type(error)
    try:
        return clean_text(f"{kind.__module__}.{kind.__qualname__}", PATH_CHARACTERS)
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return name_of(error)


def name_of(error: BaseException) -> str:
    """Return the name of the exception's class, even if a metaclass replaces `__name__`."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return escape(name)


def message_of(error: BaseException, mask: Mask = str) -> str:
    try:
        return clean_text(mask(str(error)), MESSAGE_CHARACTERS)
    except BaseException as failure:  # noqa: BLE001 - __str__ may raise anything
        return f"<the message of this {name_of(error)} cannot be read: {name_of(failure)}>"


def first_line_of(error: BaseException, mask: Mask = str) -> str:
    """Return the class and the first line of the message, as one line of a log."""
    message = message_of(error, mask).strip().partition("\n")[0]
    return printable(mask(f"{name_of(error)}: {message}") if message else name_of(error))


def full_traceback(error: BaseException) -> str:
    """Return the whole traceback, with all causes."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failure:  # noqa: BLE001 - as above
        return f"{name_of(error)} <its traceback cannot be read: {name_of(failure)}>\n"
