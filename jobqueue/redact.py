"""Mask what OPTIONS["REDACT"] names, wherever people look at a task's values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, NamedTuple

from jobqueue.payload import Parameters

MASK = "••••••"
SHORTEST_SECRET = 4  # characters; a shorter one stands in every second text by chance
# name=value, name: 'value', "name": "value". Possessive, so that a long text of one word takes no time.
NAME = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*+)["']?\s*+[:=]\s*+""")
VALUE = re.compile(r"""\"[^"]*+"|'[^']*+'|[^\s"',;&)\]}]++""")
LOGIN_IN_URL = re.compile(r"(://[^/\s:@]*+:)[^/\s@]++(?=@)")


def redact(value: Any, patterns: Sequence[str], *path: str) -> Any:
    """
    Copy a JSON value with every part masked whose path matches a pattern; letter case does not count.

    A path is the names and list positions on the way, joined by dots: `user.password`, `rows.0.token`.
    A pattern with a dot is matched against the whole path, one without also against a name alone;
    `*` stands for anything, dots included. path: where `value` itself stands.
    """
    if path and is_named(patterns, *path):
        return MASK
    match value:
        case dict():
            return {name: redact(part, patterns, *path, name) for name, part in value.items()}
        case list():
            return [redact(part, patterns, *path, str(place)) for place, part in enumerate(value)]
        case _:
            return value


def is_named(patterns: Sequence[str], *path: str) -> bool:
    """Whether a pattern names this path."""
    bare, dotted = _compile(tuple(patterns))
    whole = ".".join(path)
    return bool(bare.fullmatch(path[-1]) or bare.fullmatch(whole) or dotted.fullmatch(whole))


@lru_cache(maxsize=64)
def _compile(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    bare = [translate(pattern) for pattern in patterns if "." not in pattern]
    dotted = [translate(pattern) for pattern in patterns if "." in pattern]
    never = r"(?!)"
    return re.compile("|".join(bare) or never, re.IGNORECASE), re.compile("|".join(dotted) or never, re.IGNORECASE)


def secrets_in(value: Any, patterns: Sequence[str], *path: str) -> Iterator[str]:
    """Give the texts and numbers that redact() masks in a JSON value, to be found where they went from there."""
    if path and is_named(patterns, *path):
        yield from (form for text in _leaves(value) if len(text) >= SHORTEST_SECRET for form in _forms(text))
        return
    match value:
        case dict():
            for name, part in value.items():
                yield from secrets_in(part, patterns, *path, name)
        case list():
            for place, part in enumerate(value):
                yield from secrets_in(part, patterns, *path, str(place))


class Argument(NamedTuple):
    """One argument of a task, or all of `*args`. is_named: whether `name` is what its function calls it."""

    name: str
    value: Any
    is_named: bool = True

    def is_hidden(self, patterns: Sequence[str]) -> bool:
        """Whether it is masked because nobody can tell whether a pattern names it."""
        return bool(patterns) and not self.is_named


def arguments(parameters: Parameters | None, args: Any, kwargs: Any) -> Iterator[Argument]:
    """Tell arguments apart. parameters: of the task's function; None where no such task is known here."""
    if isinstance(args, list):
        names = parameters.positional if parameters else ()
        rest = args[len(names) :]
        yield from (Argument(name, value) for name, value in zip(names, args, strict=False))
        if parameters and parameters.variable and rest:
            yield Argument(parameters.variable, rest)
        else:
            yield from (Argument(str(place), value, False) for place, value in enumerate(rest, len(names)))
    else:
        yield Argument("", args, False)
    if isinstance(kwargs, dict):
        yield from (Argument(name, value) for name, value in kwargs.items())
    else:
        yield Argument("", kwargs, False)


def argument_secrets(parameters: Parameters | None, args: Any, kwargs: Any, patterns: Sequence[str]) -> set[str]:
    """Give the arguments that are masked, to mask them where an error or a result repeats them."""
    found: set[str] = set()
    for argument in arguments(parameters, args, kwargs):
        hidden = ("*",) if argument.is_hidden(patterns) else patterns
        found.update(secrets_in(argument.value, hidden, argument.name))
    return found


def _forms(text: str) -> set[str]:
    """Give a text as it stands, and inside of the quotes of Python and JSON."""
    return {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _leaves(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for part in value.values():
                yield from _leaves(part)
        case list():
            for part in value:
                yield from _leaves(part)
        case str():
            yield value
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def redact_text(text: str, patterns: Sequence[str], secrets: Collection[str] = ()) -> str:
    """Mask secrets in a text: those given, what a name of `patterns` is said to be, and passwords in URLs."""
    text = LOGIN_IN_URL.sub(rf"\1{MASK}", without(text, secrets))
    parts, done = [], 0
    for name in NAME.finditer(text):
        value = VALUE.match(text, name.end()) if name.start() >= done and is_named(patterns, name[1]) else None
        if value is not None:
            parts += [text[done : name.end()], MASK]
            done = value.end()
    return "".join([*parts, text[done:]])


def without(text: str, secrets: Collection[str]) -> str:
    """Mask the secrets that are given; takes a hundredth of the time of the rest of redact_text()."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def redact_texts(value: Any, secrets: Collection[str], patterns: Sequence[str] = ()) -> Any:
    """Mask in all texts of a JSON value what redact_text() masks in one."""
    match value:
        case dict():
            return {name: redact_texts(part, secrets, patterns) for name, part in value.items()}
        case list():
            return [redact_texts(part, secrets, patterns) for part in value]
        case str():
            return redact_text(value, patterns, secrets)
    return value
