"""Exceptions as text, for rows and for the log: bounded, and without the executor's own frames."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from jobqueue.exceptions import GiveUp, Retry, Stale
from jobqueue.values.text import clean_text, escape, printable

TRACEBACK_CHARACTERS = 16_000
MESSAGE_CHARACTERS = 2_000
PATH_CHARACTERS = 500
EXECUTOR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep

ANSWERS = (Retry, GiveUp, Stale)  # what a body raises about another error
DEFAULT_TEXTS = {str(answer()) for answer in ANSWERS}

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


def find_reason(error: BaseException) -> BaseException:
    """Return the error that a body answered with Retry: `raise Retry(after=60) from error`. Else the error itself."""
    chain = answers(error)
    return next((cause for cause in chain if not issubclass(type(cause), Retry)), chain[-1])


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, which may form a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def answers(error: BaseException) -> list[BaseException]:
    """Return the error; if it is a Retry, a GiveUp or a Stale that answers another one, that one, and so on."""
    chain = [error]
    while issubclass(type(chain[-1]), ANSWERS):  # isinstance() would ask the object, whose class may lie
        last = chain[-1]
        below = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if below is None or any(below is other for other in chain):
            break
        chain.append(below)
    return chain


def is_starved(error: BaseException) -> bool:
    """Return whether this process is out of memory or cannot start another thread."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def path_of(error: BaseException) -> str:
    """Return the dotted path of the exception's class; of the reason for a Retry."""
    kind = type(find_reason(error))
    try:
        return clean_text(f"{kind.__module__}.{kind.__qualname__}", PATH_CHARACTERS)
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return name_of(error)


def name_of(error: BaseException) -> str:
    """Return the name of the exception's class, even if a metaclass replaces `__name__`."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return escape(name)


def describe_error(error: BaseException, mask: Mask = str) -> str:
    """Return the message. That of an answer to another error has its own text, if it has one, and the error's."""
    *above, last = answers(error)
    try:
        texts = [text for answer in above if (text := str(answer)) not in DEFAULT_TEXTS]
        message = str(last)
        if message not in (own := ": ".join(texts)) or not own:
            is_named = last is find_reason(error)  # by the class that stands before the message
            texts.append(message if is_named else f"{name_of(last)}: {message}" if message else name_of(last))
        return clean_text(mask(": ".join(filter(None, texts))), MESSAGE_CHARACTERS)
    except BaseException as failure:  # noqa: BLE001 - __str__ may raise anything
        return f"<the message of this {name_of(last)} cannot be read: {name_of(failure)}>"


def format_first_line(error: BaseException, mask: Mask = str) -> str:
    """Return the class and the first line of the message, as one line of a log."""
    message = describe_error(error, mask).strip().partition("\n")[0]
    name = name_of(find_reason(error))
    return printable(mask(f"{name}: {message}") if message else name)


def full_traceback(error: BaseException) -> str:
    """Return the whole traceback, with all causes."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as failure:  # noqa: BLE001 - as above
        return f"{name_of(error)} <its traceback cannot be read: {name_of(failure)}>\n"
