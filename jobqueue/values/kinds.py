"""
The kinds of values that people set: which ones are valid, and the sentence about a wrong one.

A kind is a type of msgspec with a description, or a Rule. OPTIONS, declarations, calls, schedules and the API use the
same ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, ValidationError, convert

from jobqueue.values.text import short_repr

DAY_SECONDS = 86_400.0
YEAR_SECONDS = 365 * DAY_SECONDS
EARLIEST_YEAR, LATEST_YEAR = 1970, 9000  # later times, in another time zone, could be outside of Python's calendar
MAX_TASK_ATTEMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of values for which msgspec has no type."""

    is_valid: Callable[[Any], bool]  # takes a value
    description: str  # of valid values, after "must be"
    verb: str = "be"  # "lie" for a range of times


def instance(of: type, description: str) -> Rule:
    return Rule(lambda value: isinstance(value, of), description)


def described(text: str) -> Meta:
    """Return a description for errors: "NOTIFY must be `text`"."""
    return Meta(description=text)


def between(low: float, high: float, kind: str = "seconds or a timedelta") -> Meta:
    return Meta(ge=low, le=high, description=f"{kind} from {low:,} to {high:,.0f}")


MaxAttempts = Annotated[int, between(1, MAX_TASK_ATTEMPTS, "a whole number")]
Timeout = Annotated[
    Annotated[float, Meta(ge=0.001, le=YEAR_SECONDS)] | None,
    described("seconds or a timedelta, above 0 and a year at most, or None"),
]
Duration = Annotated[
    float, Meta(ge=0.001, le=366 * DAY_SECONDS, description="seconds or a timedelta, above 0 and a year at most")
]
Flag = Annotated[bool, described("True or False")]


def whole(low: int, high: int) -> Any:
    return Annotated[int, between(low, high, "a whole number")]


def text(limit: int, *, at_least: int = 1, without: str = "") -> Any:
    """Return the kind of the texts that a column can store. without: a character that they do not contain."""
    size = f"of {at_least} to {limit}" if at_least else f"of at most {limit}"
    description = f"a text {size} characters{f' without {without!r}' if without else ''}"
    pattern = rf"^[^\x00\ud800-\udfff{re.escape(without)}]{{{at_least},{limit}}}\Z"  # no NUL, no lone surrogates
    return Annotated[str, Meta(pattern=pattern, description=description)]


def one_of(*names: str) -> Any:
    plain_names = tuple(map(str, names))
    return Annotated[Literal[plain_names], described(f"one of {', '.join(map(repr, plain_names))}")]


def plain(value: Any) -> Any:
    """Return a duration in seconds, and a value of a subclass, such as Django's SafeString, as a plain one."""
    kind = type(value)  # not its class: a lazy object has another one
    if issubclass(kind, timedelta):
        return timedelta.total_seconds(value)
    if issubclass(kind, dict):
        return {key: plain(kept) for key, kept in value.items()}
    if kind is bool:
        return value
    for base in (int, float, str):
        if issubclass(kind, base):
            return getattr(base, f"__{base.__name__}__")(value)
    return value


def problem(value: Any, kind: Any) -> str | None:
    """Return why a value is not of a kind, or None."""
    if isinstance(kind, Rule):
        return None if kind.is_valid(value) else f"must {kind.verb} {kind.description}, not {short_repr(value)}"
    try:
        convert(plain(value), kind)
    except (ValidationError, ValueError):  # ValueError: text that is not UTF-8
        return f"must be {kind.__metadata__[0].description}, not {short_repr(value)}"
    return None


def problems(name: str, value: Any, kind: Any) -> Iterator[str]:
    """Yield why a value is not of a kind, as a sentence without its period."""
    if wrong := problem(value, kind):
        yield f"{name} {wrong}"


def check(name: str, value: Any, kind: Any, advice: str = "") -> None:
    """Raise ValueError if a value is not of a kind."""
    for wrong in problems(name, value, kind):
        raise ValueError(f"{wrong}. {advice}".rstrip())
