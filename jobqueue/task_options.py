"""The options of a task: which values are valid, and which apply to a row."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec
from django.conf import settings
from django.utils import timezone
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from jobqueue.backoff import Backoff
from jobqueue.conf import Flag, MaxAttempts, Options, RetryBackoff, Timeout, problem
from jobqueue.limits import limit_problems
from jobqueue.records import INTERNAL_PREFIX, is_internal
from jobqueue.serialization.arguments import parameters_of
from jobqueue.serialization.json import Normalizer
from jobqueue.serialization.text import is_text

EARLIEST_YEAR, LATEST_YEAR = 1970, 9000
MAX_OPTION_BYTES = 100
LONGEST = timedelta(days=365 * 1000)


def as_classes(value: Any) -> Any:
    """Return one exception class, or a collection of them, as a tuple."""
    if isinstance(value, type):
        return (value,)
    return tuple(value) if isinstance(value, list | set | frozenset) else value


KINDS = {"max_attempts": MaxAttempts, "timeout": Timeout, "backoff": RetryBackoff, "atomic": Flag, "allow_http": Flag}
MAX_TAGS, MAX_TAG_CHARACTERS = 20, 100
MAX_CHARACTERS = {"name": 500, "task_type": 500, "key": 255, "queue_name": 128}


# Any: a type checker may not have checked the caller.
def problems(task: Any) -> Iterator[str]:
    """Yield the problems of a declared task's options."""
    if not issubclass(type(task.priority), int | float) or task.priority != task.priority:
        yield f"priority must be a whole number, not {task.priority!r}"
    for option, kind in KINDS.items():
        value = getattr(task, option)
        if value is not None and (wrong := problem(value, kind)):
            yield f"{option} {wrong}"
    for option in ("retry_on", "give_up_on"):
        value = getattr(task, option)
        if value is not None and not (isinstance(value, tuple) and all(map(_is_exception_class, value))):
            yield f"{option} must be an exception class or a tuple of them, not {value!r}"
    if task.takes_context and not parameters_of(task.func, True).is_context_positional:
        # Django checks the name only.
        yield "takes_context=True needs a first argument of 'context' that is given by position"
    if task.atomic is True and inspect.iscoroutinefunction(task.func):
        yield "atomic=True needs a plain function: Django has no transactions in async code"
    for option, limit in MAX_CHARACTERS.items():
        value = getattr(task, option)
        if value is not None and not is_text(value, limit):
            yield f"{option} must be a text of 1 to {limit} characters, not {value!r:.200}"
    if isinstance(task.name, str) and is_internal(task.name) and not is_internal(task.func.__module__):
        yield f"name must not begin with {INTERNAL_PREFIX!r}, because tasks of this package do, not {task.name!r:.200}"
    if not isinstance(task.tags, tuple) or len(task.tags) > MAX_TAGS or not all(map(_is_tag, task.tags)):
        yield (
            f"tags must be a list of at most {MAX_TAGS} texts of 1 to {MAX_TAG_CHARACTERS} characters, not "
            f"{task.tags!r:.200}"
        )
    if task.metadata is not None and not isinstance(task.metadata, Mapping):
        yield f"metadata must be a mapping, not {task.metadata!r}"
    yield from limit_problems(task, parameters_of(task.func, task.takes_context))
    yield from time_problems("run_after", task.run_after)
    yield from time_problems("expires", task.expires)
    if isinstance(task.expires, timedelta) and task.expires <= timedelta(0):
        yield f"expires must lie in the future, not {task.expires!r}"


def _is_tag(value: Any) -> bool:
    return is_text(value, MAX_TAG_CHARACTERS)


def as_tags(value: Any) -> Any:
    """Return a collection of tags as a tuple, each once."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(tag, str) for tag in value):
        return value
    return tuple(dict.fromkeys(sorted(value) if isinstance(value, set | frozenset) else value))


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


class HasRunOptions(Protocol):
    """How to run a task: its own options, each None for the backend's default."""

    @property
    def max_attempts(self) -> int | None: ...
    @property
    def backoff(self) -> Backoff | None: ...
    @property
    def timeout(self) -> float | None: ...


class RunOptions(Struct, frozen=True, kw_only=True):
    """How to run one claimed task, from its row, its declaration and the backend's OPTIONS."""

    max_attempts: int
    backoff: Backoff
    timeout: float | None


class StoredRunOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options that using() changed, as the row's `options` store them."""

    max_attempts: MaxAttempts | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    timeout: Timeout | UnsetType = UNSET


class StoredTick(msgspec.Struct, frozen=True):
    """The schedule and the tick that a row's `options` name, None for a task that people enqueued."""

    schedule: str | None = None
    scheduled_at: datetime | None = None


NO_TICK = StoredTick()


def tick_of(stored: str) -> StoredTick:
    """Return the schedule and the tick of a row. stored: the row's `options`, which run_options() has accepted."""
    return NO_TICK if stored == "{}" else msgspec.json.decode(stored, type=StoredTick)


def stored_options(task: HasRunOptions, declared: HasRunOptions | None) -> str:
    """Return the row's `options`: what using() changed. declared: the task's declaration."""
    if declared is None or declared is task:
        return "{}"
    values = {name: getattr(task, name) for name in StoredRunOptions.__struct_fields__}
    changed = {name: v for name, v in values.items() if v is not None and v != getattr(declared, name)}
    # A subclass of int or float becomes a plain number.
    plain = Normalizer(MAX_OPTION_BYTES).normalize
    return msgspec.json.encode(StoredRunOptions(**changed), enc_hook=plain).decode()


def run_options(task: HasRunOptions, stored: str, defaults: Options) -> RunOptions:
    """
    Return how to run the task of a row: its own options, else the declaration's, else the backend's.

    stored: the row's `options`. Raises msgspec.DecodeError if they are invalid.
    """
    chosen = RunOptions(
        max_attempts=defaults.max_attempts if task.max_attempts is None else task.max_attempts,
        backoff=defaults.backoff if task.backoff is None else task.backoff,
        timeout=defaults.timeout if task.timeout is None else task.timeout,
    )
    if stored == "{}":
        return chosen
    own = asdict(msgspec.json.decode(stored, type=StoredRunOptions))
    return replace(chosen, **{name: value for name, value in own.items() if value is not UNSET})
