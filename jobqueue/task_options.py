"""The options of a task: which values are valid, and which apply to a row."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Protocol

from django.conf import settings
from django.utils import timezone
from msgspec import Struct
from msgspec.structs import replace

from jobqueue.backoff import Backoff
from jobqueue.conf import RANGES, Options
from jobqueue.serialization.arguments import parameters_of
from jobqueue.serialization.text import is_text

EARLIEST_YEAR, LATEST_YEAR = 1970, 9000
LONGEST = timedelta(days=365 * 1000)


def as_classes(value: Any) -> Any:
    """Return one exception class, or a collection of them, as a tuple."""
    if isinstance(value, type):
        return (value,)
    return tuple(value) if isinstance(value, list | set | frozenset) else value


# Any: a type checker may not have checked the caller.
def problems(task: Any) -> Iterator[str]:
    """Yield the problems of a declared task's options."""
    if not isinstance(task.priority, int | float) or task.priority != task.priority:
        yield f"priority must be a whole number, not {task.priority!r}"
    if task.max_attempts is not None and not _is_number("MAX_ATTEMPTS", task.max_attempts, int):
        yield f"max_attempts must be a whole number from 1 up, not {task.max_attempts!r}"
    if task.timeout is not None and not _is_number("TIMEOUT", task.timeout, int | float):
        yield f"timeout must be seconds or a timedelta, above 0 and a year at most, not {task.timeout!r}"
    if task.backoff is not None and not isinstance(task.backoff, Backoff):
        yield f"backoff must be a jobqueue.Backoff, not {task.backoff!r}"
    for option in ("retry_on", "give_up_on"):
        value = getattr(task, option)
        if value is not None and not (isinstance(value, tuple) and all(map(_is_exception_class, value))):
            yield f"{option} must be an exception class or a tuple of them, not {value!r}"
    for option in ("atomic", "allow_http"):
        value = getattr(task, option)
        if not isinstance(value, bool):
            yield f"{option} must be True or False, not {value!r}"
    if task.takes_context and not parameters_of(task.func, True).is_context_positional:
        # Django checks the name only.
        yield "takes_context=True needs a first argument of 'context' that is given by position"
    if task.atomic is True and inspect.iscoroutinefunction(task.func):
        yield "atomic=True needs a plain function: Django has no transactions in async code"
    for option, limit in (("name", 500), ("task_type", 500), ("key", 255), ("queue_name", 128)):
        value = getattr(task, option)
        if value is not None and not is_text(value, limit):
            yield f"{option} must be a text of 1 to {limit} characters, not {value!r:.200}"
    if task.metadata is not None and not isinstance(task.metadata, Mapping):
        yield f"metadata must be a mapping, not {task.metadata!r}"
    yield from time_problems("run_after", task.run_after)
    yield from time_problems("expires", task.expires)
    if isinstance(task.expires, timedelta) and task.expires <= timedelta(0):
        yield f"expires must lie in the future, not {task.expires!r}"


def _is_number(option: str, value: Any, kinds: Any) -> bool:
    low, high = RANGES[option]
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def _is_exception_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def time_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problems of a datetime or timedelta. None is valid."""
    match value:
        case None:
            pass
        case timedelta():
            if abs(value) > LONGEST:
                yield f"{option} must lie within a thousand years, not {value!r}"
        case datetime():
            # Django itself refuses a naive run_after.
            if option != "run_after" and settings.USE_TZ and timezone.is_naive(value):
                yield f"{option} must be an aware datetime, not {value!r}"
            # With later or earlier years, a rank could be outside of Python's calendar, and the row unreadable.
            elif not EARLIEST_YEAR <= value.year <= LATEST_YEAR:
                yield f"{option} must lie between the years {EARLIEST_YEAR} and {LATEST_YEAR}, not {value!r}"
        case _:
            yield f"{option} must be a datetime or a timedelta, not {value!r}"


class HasLimits(Protocol):
    """A task's own limits, each None for the backend's default."""

    @property
    def max_attempts(self) -> int | None: ...
    @property
    def backoff(self) -> Backoff | None: ...
    @property
    def timeout(self) -> float | None: ...


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one claimed task, from its row, its declaration and the backend's OPTIONS."""

    max_attempts: int
    backoff: Backoff
    timeout: float | None


def stored_options(task: HasLimits, declared: HasLimits | None) -> dict[str, Any]:
    """Return the limits that using() changed, as the row's `options` store them. declared: the task's declaration."""
    options: dict[str, Any] = {}
    if declared is None or declared is task:
        return options
    for option in ("max_attempts", "timeout", "backoff"):
        value = getattr(task, option)
        if value is not None and value != getattr(declared, option):
            options[option] = asdict(value) if isinstance(value, Backoff) else value
    return options


def limits(task: HasLimits, stored: Mapping[str, Any], defaults: Options) -> Limits:
    """
    Return the limits of a row: its own options, else the declaration's, else the backend's.

    stored: the row's `options`, decoded. Raises ValueError or TypeError if they are invalid.
    """

    if not stored:
        return Limits(
            max_attempts=defaults.max_attempts if task.max_attempts is None else task.max_attempts,
            backoff=defaults.backoff if task.backoff is None else task.backoff,
            timeout=defaults.timeout if task.timeout is None else task.timeout,
        )
    chosen = limits(task, {}, defaults)
    if "max_attempts" in stored:
        chosen = replace(chosen, max_attempts=_number("MAX_ATTEMPTS", stored["max_attempts"], int))
    if "backoff" in stored:
        chosen = replace(chosen, backoff=Backoff(**stored["backoff"]))
    if "timeout" in stored:
        chosen = replace(chosen, timeout=_number("TIMEOUT", stored["timeout"], int | float))
    return chosen


def _number(option: str, value: Any, kinds: Any) -> Any:
    if not _is_number(option, value, kinds):
        raise ValueError(f"{option.lower()} is {value!r}")
    return value
