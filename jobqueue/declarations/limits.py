"""Limits by key: how many tasks run at once, and how many start in a period. Options for calls with one unique key."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from jobqueue.exceptions import InvalidArguments
from jobqueue.values import kinds
from jobqueue.values.arguments import Parameters
from jobqueue.values.limit_keys import SEPARATOR
from jobqueue.values.text import is_text

KeySource: TypeAlias = str | Callable[..., str] | None
OnConflict: TypeAlias = Literal["keep", "replace", "raise"]

ON_CONFLICT = ("keep", "replace", "raise")
UNIQUENESS = {"on_conflict", "unique_for", "debounce"}  # the options of using() that need a unique key
MAX_KEY_CHARACTERS = 255  # of what a template or a function returns
MAX_NAME_CHARACTERS = 300  # of `shared`, or of the task's name
MAX_LIMIT = 1_000_000_000  # what the column can store


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `limit` tasks with the same key run at once, in all executors together."""

    limit: int  # how many; people can change it while the site runs, if it is adjustable
    # A template with names of arguments, such as "account-{account_id}", or a function that takes the arguments and
    # returns a text. None: all tasks of the type count together.
    key: KeySource = None
    """A template with names of arguments, such as "account-{account_id}", or a function that takes the arguments
    and returns a text. Without a key, all tasks of the type count together."""
    # A name. Tasks with the same name and key count together, also those of other types. None: only this type.
    shared: str | None = None
    """A name. Tasks with the same name and key count together, also those of other types."""
    count_while_retrying: bool = False  # a task also counts while it waits for a retry
    """A task also counts while it waits for a retry."""
    adjustable: bool = True  # whether people can change the number without a deploy
    """Whether people can change the number while the site runs."""


@dataclass(frozen=True, slots=True)
class Rate:
    """In any `per` seconds, at most `limit` tasks with the same key start. Each attempt counts."""

    limit: int  # how many starts; people can change it while the site runs, if it is adjustable
    per: float | timedelta  # seconds or a timedelta
    key: KeySource = None  # as for Concurrency
    shared: str | None = None  # as for Concurrency
    adjustable: bool = True  # as for Concurrency

    @property
    def seconds(self) -> float:
        return float(kinds.plain(self.per))


@dataclass(frozen=True, slots=True)
class Debounce:
    """While the task with a unique key waits, each call with the key replaces the task and moves its start."""

    wait: float | timedelta  # the time from a call to the start, in seconds or a timedelta
    # the longest time from the first call to the start; None: each call moves the start
    max_wait: float | timedelta | None = None

    @property
    def wait_seconds(self) -> float:
        return float(kinds.plain(self.wait))

    @property
    def max_wait_seconds(self) -> float | None:
        return None if self.max_wait is None else float(kinds.plain(self.max_wait))


CONCURRENCY, RATE = kinds.instance(Concurrency, "a Concurrency"), kinds.instance(Rate, "a Rate")
DEBOUNCE = kinds.instance(Debounce, "a Debounce")
KEY_SOURCE = kinds.Rule(callable, "a template or a function")
KEY = kinds.text(MAX_KEY_CHARACTERS)


# task: Any, because a type checker may not have seen its options.
def concurrency_problems(task: Any, parameters: Parameters) -> Iterator[str]:
    """Yield the problems of a task's concurrency limit."""
    if isinstance(task.concurrency, Concurrency):
        yield from _common_problems("concurrency", task.concurrency, task, parameters)
    else:
        yield from kinds.problems("concurrency", task.concurrency, CONCURRENCY)


def rate_problems(task: Any, parameters: Parameters) -> Iterator[str]:
    """Yield the problems of a task's rate."""
    if isinstance(task.rate, Rate):
        yield from _common_problems("rate", task.rate, task, parameters)
        yield from kinds.problems("rate: per", task.rate.per, kinds.Duration)
    else:
        yield from kinds.problems("rate", task.rate, RATE)


# limit: Any, because a type checker may not have checked its fields.
def _common_problems(option: str, limit: Any, task: Any, parameters: Parameters) -> Iterator[str]:
    yield from kinds.problems(f"{option}: limit", limit.limit, kinds.whole(1, MAX_LIMIT))
    if limit.shared is not None:
        yield from kinds.problems(f"{option}: shared", limit.shared, kinds.text(MAX_NAME_CHARACTERS, without=SEPARATOR))
    elif len(task.first_name) > MAX_NAME_CHARACTERS or SEPARATOR in task.first_name:
        yield f"{option} needs shared='...': the task's name has more than {MAX_NAME_CHARACTERS} characters, or a ':'"
    for flag in ("count_while_retrying", "adjustable"):
        yield from kinds.problems(f"{option}: {flag}", getattr(limit, flag, True), kinds.Flag)
    if isinstance(limit.key, str):
        yield from template_problems(f"{option}: key", limit.key, parameters)
    elif limit.key is not None:
        yield from kinds.problems(f"{option}: key", limit.key, KEY_SOURCE)


def template_problems(option: str, template: str, parameters: Parameters) -> Iterator[str]:
    """Yield the problems of a template whose fields name arguments."""
    allowed = parameters.signature.parameters
    try:
        fields = list(_fields(template))
    except ValueError as error:
        yield f"{option} {template!r:.200} is not a valid template: {error}"
        return
    if not template:
        yield f"{option} must not be empty. Leave it out if all tasks count together"
    for name in (re.split(r"[.[]", field)[0] for field in fields):  # "{order[customer]}" names the argument `order`
        if name not in allowed:
            names = ", ".join(allowed) or "none"
            yield f"{option} {template!r:.200} names {name!r}, which is no argument. The task has: {names}"


def _fields(template: str) -> Iterator[str]:
    """Yield what a template names, also in a format, such as "{order_id:{width}}". Raises ValueError."""
    for _, name, format_spec, conversion in string.Formatter().parse(template):
        if name is not None:
            string.Formatter().convert_field(None, conversion)  # raises for "{order_id!x}"
            yield name
            yield from _fields(format_spec or "")


def has_fields(template: str) -> bool:
    """Return whether a template names an argument."""
    return any(name is not None for _, name, _, _ in string.Formatter().parse(template))


def conflict_problems(task: Any) -> Iterator[str]:
    """Yield the problems of on_conflict, and of options that need a key."""
    yield from kinds.problems("on_conflict", task.on_conflict, kinds.one_of(*ON_CONFLICT))
    if task.key is None and (task.on_conflict != "keep" or task.unique_for is not None or task.debounce is not None):
        yield "on_conflict, unique_for and debounce need a key: using(key=...)"


def unique_for_problems(task: Any) -> Iterator[str]:
    """Yield the problems of unique_for."""
    yield from kinds.problems("unique_for", task.unique_for, kinds.Duration)


def debounce_problems(task: Any) -> Iterator[str]:
    """Yield the problems of debounce."""
    debounce = task.debounce
    if not isinstance(debounce, Debounce):
        yield from kinds.problems("debounce", debounce, DEBOUNCE)
        return
    wrong = list(kinds.problems("debounce: wait", debounce.wait, kinds.Duration))
    if debounce.max_wait is not None:
        wrong += kinds.problems("debounce: max_wait", debounce.max_wait, kinds.Duration)
        if not wrong and kinds.plain(debounce.max_wait) < kinds.plain(debounce.wait):
            wrong.append("debounce: max_wait must not be shorter than wait")
    yield from wrong
    if task.run_after is not None:
        yield "debounce decides when the task starts: remove run_after"
    if task.on_conflict == "raise":
        yield "debounce replaces the waiting task: remove on_conflict='raise'"


def replaces_or_reserves(task: Any) -> bool:
    """Return whether a call with the unique key may change another task, or keeps the key after the end of the task."""
    return task.on_conflict == "replace" or task.unique_for is not None or task.debounce is not None


def limit_columns(task: Any, parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the columns of the limits of a task. Empty: the task has no limits.

    The arguments must fit the parameters. Raises InvalidArguments if a key cannot be made from them.
    """
    columns: dict[str, Any] = {}
    if (concurrency := task.concurrency) is not None:
        columns["concurrency_key"] = format_key(concurrency, task, parameters, args, kwargs)
        columns["concurrency_limit"] = concurrency.limit
        columns["count_while_retrying"] = concurrency.count_while_retrying
    if (rate := task.rate) is not None:
        columns["rate_key"] = format_key(rate, task, parameters, args, kwargs)
        columns["rate_limit"] = rate.limit
        columns["rate_seconds"] = rate.seconds
    return columns


def format_key(
    limit: Concurrency | Rate, task: Any, parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return the name of a limit and the key of a call, as one text for the row. Raises InvalidArguments."""
    return f"{limit.shared or task.first_name}{SEPARATOR}{_own_key(limit, task, parameters, args, kwargs)}"


def _own_key(
    limit: Concurrency | Rate, task: Any, parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    if limit.key is None:
        return ""
    try:
        if callable(limit.key):
            key = limit.key(*args, **kwargs)
        else:
            key = format_template(limit.key, parameters, args, kwargs)
    except Exception as error:  # the site's code, and values that a format does not fit
        raise InvalidArguments(f"{task.name}(): cannot make the key of its limit: {error!r:.200}") from error
    if not is_text(key, MAX_KEY_CHARACTERS):  # each task pays for this; a kind takes longer
        raise InvalidArguments(f"{task.name}(): the key of its limit {kinds.problem(key, KEY)}")
    return key


def format_template(template: str, parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a template with the arguments of a call. Raises what their formats raise, and ValueError for None."""
    bound = parameters.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return KEYS.vformat(template, (), bound.arguments)


class _KeyFormatter(string.Formatter):
    """Formats templates of keys. Raises ValueError for None, which stands for no value as a rule."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value, used = super().get_field(field_name, args, kwargs)
        if value is None:
            raise ValueError(f"{field_name} is None. If None is a key, write a function that returns it as text")
        return value, used


KEYS: Final = _KeyFormatter()
