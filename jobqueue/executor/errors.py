"""How an exception is written into a row: from the body's own first frame on, bounded, storable."""

from __future__ import annotations

import json
import logging
import os
import traceback
from datetime import UTC, datetime
from typing import TypeVar

from jobqueue.outcome import Claimed
from jobqueue.payload import clean_text, escape

TRACEBACK_CHARACTERS = 16_000
MESSAGE_CHARACTERS = 2_000
PATH_CHARACTERS = 500
OURS = os.path.dirname(__file__) + os.sep

Error = TypeVar("Error", bound=BaseException)


def from_the_body(error: Error) -> Error:
    """
    Leave out our own frames, which lead to the body's.

    They also hold on to the exception: with them, all that a failed body had in its hands would
    live until the next collection of garbage.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
        frames = frames.tb_next
    return error.with_traceback(frames)


def error_text(claimed: Claimed, error: BaseException, executor_name: str) -> str:
    """Write one entry of the `errors` column; works for exceptions that cannot even be printed."""
    return json.dumps(
        {
            "attempt": claimed.attempts + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "executor": executor_name,
            "exception_class_path": path_of(error),
            "message": message_of(error),
            "traceback": traceback_of(error),
        }
    )


def log_failure(logger: logging.Logger, line: str, *args: object) -> None:
    """Log the exception that is being handled, and do without its traceback where that cannot be printed."""
    try:
        logger.exception(line, *args)
    except BaseException as failure:  # noqa: BLE001 - a class of the user's may raise anything when it is printed
        logger.error(f"{line} <its traceback cannot be read: %s>", *args, name_of(failure))


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


def message_of(error: BaseException) -> str:
    try:
        return clean_text(str(error), MESSAGE_CHARACTERS)
    except BaseException as failure:  # noqa: BLE001 - a __str__ of the user's may raise anything
        return f"<the message of this {name_of(error)} cannot be read: {name_of(failure)}>"


def first_line_of(error: BaseException) -> str:
    """Give what fits into a line of the log."""
    message = message_of(error).strip().partition("\n")[0]
    return f"{name_of(error)}: {message}" if message else name_of(error)


def traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failure:  # noqa: BLE001 - as above
        return f"{name_of(error)} <its traceback cannot be read: {name_of(failure)}>\n"
    return clean_text(text, TRACEBACK_CHARACTERS)
