"""The options of a task: which values are valid, and which apply to a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import msgspec
from django.conf import settings
from django.utils import timezone
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from jobqueue.conf.options import Options
from jobqueue.declarations.limits import (
    concurrency_problems,
    conflict_problems,
    debounce_problems,
    rate_problems,
    unique_for_problems,
)
from jobqueue.values import kinds
from jobqueue.values.arguments import Parameters, read_parameters
from jobqueue.values.backoff import Backoff
from jobqueue.values.json import Normalizer
from jobqueue.values.kinds import EARLIEST_YEAR, LATEST_YEAR, Flag, MaxAttempts, Rule, Timeout, instance, plain, text
from jobqueue.values.records import INTERNAL_PREFIX, is_internal
from jobqueue.values.text import is_text, short_repr

MAX_OPTION_BYTES = 100
MAX_MIB = 1_000_000
LONGEST = timedelta(days=365 * 1000)
MAX_TAGS, MAX_TAG_CHARACTERS = 20, 100


def as_classes(value: Any) -> Any:
    """Return one exception class, or a collection of them, as a tuple."""
    if issubclass(type(value), type):
        return (value,)
    return tuple(value) if issubclass(type(value), list | set | frozenset) else value


def _is_number(value: Any) -> bool:
    return issubclass(type(value), int | float) and value == value  # not NaN; Django checks that it is whole


def _is_time(value: Any) -> bool:
    return issubclass(type(value), datetime | timedelta)  # not its class: that of a lazy object is another one


def _are_exceptions(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_text(name, MAX_CHARACTERS["name"]) for name in value)


def _are_tags(value: Any) -> bool:
    is_short = isinstance(value, tuple) and len(value) <= MAX_TAGS
    return is_short and all(is_text(tag, MAX_TAG_CHARACTERS) for tag in value)


EXCEPTIONS = Rule(_are_exceptions, "an exception class or a tuple of them")
TIME = Rule(_is_time, "a datetime or a timedelta")
WAIT = Rule(lambda value: abs(value) <= LONGEST, "within a thousand years", verb="lie")
AWARE = Rule(timezone.is_aware, "an aware datetime")
# With later or earlier years, a rank could be outside of Python's calendar, and the row unreadable.
MOMENT = Rule(
    lambda value: EARLIEST_YEAR <= value.year <= LATEST_YEAR,
    f"between the years {EARLIEST_YEAR} and {LATEST_YEAR}",
    verb="lie",
)
MAX_CHARACTERS = {"name": 500, "task_type": 500, "key": 255, "queue_name": 128}
KINDS: Mapping[str, Any] = {
    "priority": Rule(_is_number, "a whole number"),
    "max_attempts": MaxAttempts,
    "timeout": Timeout,
    "backoff": Rule(lambda value: issubclass(type(value), Backoff), "a jobqueue.Backoff"),
    "retry_on": EXCEPTIONS,
    "give_up_on": EXCEPTIONS,
    "aliases": Rule(_are_names, "a list of earlier names of the task, each a text of 1 to 500 characters"),
    "tags": Rule(_are_tags, f"a list of at most {MAX_TAGS} texts of 1 to {MAX_TAG_CHARACTERS} characters"),
    "metadata": instance(Mapping, "a mapping"),
    "atomic": Flag,
    "process": Flag,
    "max_memory": kinds.whole(1, MAX_MIB),
    "allow_http": Flag,
    **{option: text(limit) for option, limit in MAX_CHARACTERS.items()},
}


# Any: a type checker may not have checked the caller.
def task_option_problems(task: Any) -> Iterator[str]:
    """Yield the problems of a declared task's options."""
    for option, check in CHECKS.items():
        if (value := getattr(task, option)) is None and option not in REQUIRED:
            continue
        try:
            yield from check(task)
        except Exception as error:  # noqa: BLE001 - the value's own code, such as a lazy object or a subclass
            yield unreadable(option, value, error)


def unreadable(option: str, value: Any, error: Exception) -> str:
    """Return the problem of a value whose own code fails when it is checked."""
    return f"{option} cannot be read, because {short_repr(value)} raises {short_repr(error)}"


def _kind_problems(option: str, task: Any) -> Iterator[str]:
    yield from kinds.problems(option, getattr(task, option), KINDS[option])


def _function_problems(task: Any) -> Iterator[str]:
    if task.takes_context and not read_parameters(task.func, True).is_context_positional:
        # Django checks the name only.
        yield "takes_context=True needs a first argument of 'context' that is given by position"
    if task.atomic is True and inspect.iscoroutinefunction(task.func):
        yield "atomic=True needs a plain function: Django has no transactions in async code"
    if task.process is True and (task.atomic is True or inspect.iscoroutinefunction(task.func)):
        yield "process=True needs a plain function without atomic=True, as a child process has its own transactions"
    if task.max_memory is not None and task.process is not True:
        yield "max_memory needs process=True: the tasks of one process share its memory"


def _name_problems(task: Any) -> Iterator[str]:
    yield from _kind_problems("name", task)
    if isinstance(task.name, str) and is_internal(task.name) and not is_internal(task.func.__module__):
        name = short_repr(task.name)
        yield f"name must not begin with {INTERNAL_PREFIX!r}, because tasks of this package do, not {name}"


def _alias_problems(task: Any) -> Iterator[str]:
    yield from _kind_problems("aliases", task)
    if isinstance(task.aliases, tuple) and task.task_type in task.aliases:
        yield "aliases must not have the task's own name"
    if isinstance(task.aliases, tuple) and any(isinstance(name, str) and is_internal(name) for name in task.aliases):
        yield f"aliases must not begin with {INTERNAL_PREFIX!r}, because tasks of this package do"


def _check_limits(check: Callable[[Any, Parameters], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
    return lambda task: check(task, read_parameters(task.func, task.takes_context))


def _expiry_problems(task: Any) -> Iterator[str]:
    yield from time_problems("expires", task.expires)
    if issubclass(type(task.expires), timedelta) and task.expires <= timedelta(0):
        yield f"expires must lie in the future, not {short_repr(task.expires)}"


REQUIRED = ("priority", "aliases", "tags", "on_conflict")  # None is no value of theirs
CHECKS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    **{option: partial(_kind_problems, option) for option in KINDS},
    "func": _function_problems,
    "name": _name_problems,
    "aliases": _alias_problems,
    "concurrency": _check_limits(concurrency_problems),
    "rate": _check_limits(rate_problems),
    "on_conflict": conflict_problems,
    "unique_for": unique_for_problems,
    "debounce": debounce_problems,
    "run_after": lambda task: time_problems("run_after", task.run_after),
    "expires": _expiry_problems,
}


def as_tags(value: Any) -> Any:
    """Return a collection of texts as a tuple, each once."""
    if not issubclass(type(value), list | tuple | set | frozenset) or not all(isinstance(tag, str) for tag in value):
        return value
    return tuple(dict.fromkeys(sorted(value) if isinstance(value, set | frozenset) else value))


# What each option becomes before it is checked.
DERIVED: Mapping[str, Callable[[Any], Any]] = {
    "name": plain,
    "task_type": plain,
    "key": plain,
    "queue_name": plain,
    "priority": plain,
    "max_attempts": plain,
    "timeout": plain,
    "retry_on": as_classes,
    "give_up_on": as_classes,
    "aliases": as_tags,
    "tags": as_tags,
}


def time_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problems of a datetime or timedelta. None is valid."""
    if value is None:
        return
    if not _is_time(value):
        kind = TIME
    elif issubclass(type(value), timedelta):
        kind = WAIT
    elif option != "run_after" and settings.USE_TZ and timezone.is_naive(value):  # Django refuses a naive run_after
        kind = AWARE
    else:
        kind = MOMENT
    yield from kinds.problems(option, value, kind)


class HasRunOptions(Protocol):
    """A task's own options of a run, each None for the backend's default."""

    @property
    def max_attempts(self) -> int | None: ...
    @property
    def backoff(self) -> Backoff | None: ...
    @property
    def timeout(self) -> float | None: ...


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options to run one claimed task, from its row, its declaration and the backend's OPTIONS."""

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


def read_tick(stored: str) -> StoredTick:
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
    effective = RunOptions(
        max_attempts=defaults.max_attempts if task.max_attempts is None else task.max_attempts,
        backoff=defaults.backoff if task.backoff is None else task.backoff,
        timeout=defaults.timeout if task.timeout is None else task.timeout,
    )
    if stored == "{}":
        return effective
    own = asdict(msgspec.json.decode(stored, type=StoredRunOptions))
    return replace(effective, **{name: value for name, value in own.items() if value is not UNSET})
