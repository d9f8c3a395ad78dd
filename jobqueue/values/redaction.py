"""Mask the values that OPTIONS["REDACT"] names, on every page and in the log."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, NamedTuple

from jobqueue.values.arguments import Parameters
from jobqueue.values.text import left_out

MASK = "••••••"
SHORTEST_SECRET = 4  # characters; shorter ones are in many texts by chance
MAX_STEPS = 100  # levels; deeper values are masked
MAX_PATH_CHARACTERS = 255  # values with longer paths are masked, if a pattern is for whole paths
MAX_SECRET_CHARACTERS = 20_000  # of all secrets of a task; with more, its texts are masked whole
MAX_READ_CHARACTERS = 500_000  # of either end of a text
MAX_TEXT_CHARACTERS = 20_000  # shown of an error's message or traceback, half of them from the end
WHOLE = f"{MASK} (masked whole, because the task's masked arguments are too many or too large to search for)"
# name=value, name: 'value', "name": "value". Possessive, so that a long text of one word takes no time.
NAME = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*+)["']?\s*+[:=]\s*+""")
VALUE = re.compile(r"""\"[^"]*+"|'[^']*+'|(?:(?i:basic|bearer|token)\s++)?[^\s"',;&)\]}]++""")
LOGIN_IN_URL = re.compile(r"(://[^/\s:@]*+:)[^/\s@]++(?=@)")


def redact(value: Any, patterns: Sequence[str], *path: str, masked: list[Any] | None = None) -> Any:
    """
    Return a copy of a JSON value in which the parts with a matching path are masked. Case is ignored.

    A path joins names and list positions by dots: `user.password`, `rows.0.token`. A pattern with a dot is compared
    with the whole path, others also with single names. `*` matches anything, including dots. Values nested deeper
    than MAX_STEPS are always masked.
    path: the path of `value` itself. masked: a list that receives the masked parts.
    """
    if path and (len(path) > MAX_STEPS or is_named(patterns, *path)):
        if masked is not None:
            masked.append(value)
        return MASK
    match value:
        case dict():
            return {name: redact(part, patterns, *path, name, masked=masked) for name, part in value.items()}
        case list():
            return [redact(part, patterns, *path, str(index), masked=masked) for index, part in enumerate(value)]
        case _:
            return value


def is_named(patterns: Sequence[str], *path: str) -> bool:
    """Return whether a pattern names this path."""
    of_names, of_paths = _compile(tuple(patterns))
    if of_names is not None and of_names.fullmatch(path[-1]):
        return True
    if of_paths is None:
        return False
    whole = ".".join(path)
    return len(whole) > MAX_PATH_CHARACTERS or bool(of_paths.fullmatch(whole))


@lru_cache(maxsize=64)
def _compile(patterns: tuple[str, ...]) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """
    Return an expression for single names and one for whole paths, each None if no pattern needs it.

    A pattern such as `*token*` matches a path only if it matches a name in it. So only patterns with a dot, or with a
    wildcard between other characters, are compared with whole paths.
    """
    of_names = [translate(pattern) for pattern in patterns if "." not in pattern]
    of_paths = [translate(pattern) for pattern in patterns if set(".*?[") & set(pattern.strip("*"))]
    return _any(of_names), _any(of_paths)


def _any(expressions: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(expressions), re.IGNORECASE) if expressions else None


def _forms(text: str) -> set[str]:
    """Return a text as it is, and as Python and JSON write it between quotes."""
    return {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _leaves(values: Iterable[Any]) -> Iterator[str]:
    """Yield all strings, numbers and names in JSON values, at any depth."""
    rest = list(values)
    while rest:
        match rest.pop():
            case dict() as members:
                yield from members
                rest += members.values()
            case list() as items:
                rest += items
            case str() as text:
                yield text
            case int() | float() as number if not isinstance(number, bool):
                yield str(number)


class Secrets:
    """
    Values to mask wherever a text repeats them.

    Each is searched with str.find(), which takes time in proportion to the text. The secrets of a task have at most
    MAX_SECRET_CHARACTERS, so their number is limited, too.

    is_whole: texts are masked whole, because the secrets are unknown or have more than MAX_SECRET_CHARACTERS.
    """

    def __init__(self, values: Iterable[Any] = (), *, is_whole: bool = False) -> None:
        """Collect the secrets. values: JSON; each string, number and name in it is a secret."""
        self.is_whole = is_whole
        self._forms: set[str] = set()
        size = 0
        for text in _leaves(values):
            if len(text) < SHORTEST_SECRET or text in self._forms:
                continue
            added = _forms(text) if len(text) <= MAX_SECRET_CHARACTERS else {text}
            size += sum(map(len, added))
            if size > MAX_SECRET_CHARACTERS:
                self.is_whole = True
                return
            self._forms |= added

    def __bool__(self) -> bool:
        return self.is_whole or bool(self._forms)

    def mask(self, text: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
        """Mask the secrets in a text. The middle of a text longer than `limit` is neither searched nor returned."""
        if self.is_whole:
            return WHOLE if text else text
        if len(text) <= limit:
            return self._mask_part(text, 0, len(text)) if self else text
        head, tail = limit // 2, len(text) - (limit - limit // 2)
        return self._mask_part(text, 0, head) + left_out(tail - head) + self._mask_part(text, tail, len(text))

    def are_in(self, text: str) -> bool:
        """Return whether a text contains a secret."""
        return self.is_whole or any(form in text for form in self._forms)

    def _mask_part(self, text: str, start: int, end: int) -> str:
        """Return a part of a text, masked. A secret that crosses an edge of the part is masked, too."""
        longest = max(map(len, self._forms), default=0)
        first = max(0, start - longest)
        parts: list[str] = []
        for left, right in self._merged(text[first : end + longest]):
            left, right = first + left, first + right
            if start < right and left < end:
                parts += [text[start:left], MASK]
                start = right
        return "".join([*parts, text[start:end]])

    def _merged(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of the parts of a text to mask, in order. Secrets that overlap are one part."""
        merged: list[tuple[int, int]] = []
        for left, right in sorted(span for form in self._forms for span in _places(form, text)):
            if merged and left < merged[-1][1]:
                merged[-1] = merged[-1][0], max(right, merged[-1][1])
            else:
                merged.append((left, right))
        return merged


def _places(form: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each occurrence, of those that overlap, too."""
    start = text.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = text.find(form, start + 1)


NO_SECRETS = Secrets()


class Argument(NamedTuple):
    """One argument of a task, or all of `*args`."""

    name: str  # of the parameter, or the position
    value: Any  # as in the row, not redacted
    is_named: bool = True  # whether `name` is the function's name for it

    def is_hidden(self, patterns: Sequence[str]) -> bool:
        """Return whether it is masked because its name is unknown."""
        return bool(patterns) and not self.is_named


def name_arguments(parameters: Parameters | None, args: Any, kwargs: Any) -> Iterator[Argument]:
    """Yield the arguments with their names. parameters: of the task's function; None if the task is unknown here."""
    if isinstance(args, list):
        names = parameters.positional if parameters else ()
        rest = args[len(names) :]
        yield from (Argument(name, value) for name, value in zip(names, args, strict=False))
        if parameters and parameters.variable and rest:
            yield Argument(parameters.variable, rest)
        else:
            yield from (Argument(str(index), value, False) for index, value in enumerate(rest, len(names)))
    else:
        yield Argument("", args, False)
    if isinstance(kwargs, dict):
        yield from (Argument(name, value) for name, value in kwargs.items())
    else:
        yield Argument("", kwargs, False)


def argument_secrets(parameters: Parameters | None, args: Any, kwargs: Any, patterns: Sequence[str]) -> Secrets:
    """Return the masked arguments, to mask them if an error or a result repeats them."""
    if not patterns:
        return NO_SECRETS
    if not isinstance(args, list) or not isinstance(kwargs, dict):  # too large or unreadable
        return Secrets(is_whole=True)
    masked: list[Any] = []
    for argument in name_arguments(parameters, args, kwargs):
        if argument.is_hidden(patterns):
            masked.append(argument.value)
        else:
            redact(argument.value, patterns, argument.name, masked=masked)
    return Secrets(masked)


def redact_text(
    text: str, patterns: Sequence[str], secrets: Secrets = NO_SECRETS, limit: int = MAX_TEXT_CHARACTERS
) -> str:
    """
    Mask secrets in a text: the given ones, values after a name that `patterns` match, and passwords in URLs.

    limit: the most characters to return; the middle of a longer text is left out. Names and URLs are masked before,
    since a value that is cut may lose its name. So MAX_READ_CHARACTERS are read from either end at most.
    """
    if secrets.is_whole:
        return secrets.mask(text)
    size = MAX_READ_CHARACTERS
    ends = (text,) if len(text) <= max(limit, 2 * size) else (text[:size], text[-size:])
    return secrets.mask("".join(_redact_names(end, patterns) for end in ends), limit)


def _redact_names(text: str, patterns: Sequence[str]) -> str:
    text = LOGIN_IN_URL.sub(rf"\1{MASK}", text)
    if not patterns:
        return text
    parts, done = [], 0
    for name in NAME.finditer(text):
        value = VALUE.match(text, name.end()) if name.start() >= done and is_named(patterns, name[1]) else None
        if value is not None:
            parts += [text[done : name.end()], MASK]
            done = value.end()
    return "".join([*parts, text[done:]])


def redact_texts(value: Any, secrets: Secrets, patterns: Sequence[str] = ()) -> Any:
    """
    Apply redact_text() to all strings and names in a JSON value, and mask numbers that contain a secret.

    value: a result of redact(), which limits its nesting.
    """
    if secrets.is_whole:
        return MASK if value else value
    match value:
        case dict():
            return {
                redact_text(name, patterns, secrets, limit=sys.maxsize): redact_texts(part, secrets, patterns)
                for name, part in value.items()
            }
        case list():
            return [redact_texts(part, secrets, patterns) for part in value]
        case str():
            return redact_text(value, patterns, secrets, limit=sys.maxsize)
        case int() | float() if secrets and secrets.are_in(str(value)):
            return MASK
    return value
