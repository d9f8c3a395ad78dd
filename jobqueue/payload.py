"""
The JSON boundary: what goes into a row, checked so that every database stores it and Python reads it back.

Values are normalised as Django's `normalize_json` does: sequences become lists, bytes become text.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import inf, isfinite
from typing import Any, NoReturn, TypeVar

import msgspec

from jobqueue.exceptions import InvalidArguments, InvalidResult, PayloadTooLarge

MAX_DEPTH = 64
MAX_DEDUPE = 255  # characters
LONG_PATH = 12  # steps that an error names, beyond only the first and the last
# Python refuses to read longer integers (sys.set_int_max_str_digits), and the reader may be another
# process than the writer: so its default counts, whatever is set here.
MAX_DIGITS = sys.int_info.default_max_str_digits
_BIG = 2**63
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_HINTS: Mapping[str, str] = {
    "set": "pass a list",
    "frozenset": "pass a list",
    "datetime": "pass its isoformat()",
    "date": "pass its isoformat()",
    "time": "pass its isoformat()",
    "timedelta": "pass its total_seconds()",
    "UUID": "pass str() of it",
    "Decimal": "pass str() of it",
    "__proxy__": "pass str() of it",
    "QuerySet": "pass a list of primary keys",
}


class _Refused(Exception):
    """A value that cannot be stored; `path` is gathered from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def at(self, place: str) -> str:
        path = self.path[::-1]
        if len(path) > LONG_PATH:
            path[3:-1] = ["..."]
        return f"{place}{''.join(path)}: {self}"


class _TooLarge(Exception):
    """More items than bytes are allowed."""


def _checked_integer(value: int) -> int:
    digits = min(MAX_DIGITS, sys.get_int_max_str_digits() or MAX_DIGITS)
    if -(10 ** (digits - 1)) < value < 10**digits:  # msgspec, which reads messages and states, counts the sign
        return value
    raise _Refused(f"an integer of more than {digits} digits cannot be read back")


def _refuse_type(value: Any) -> NoReturn:
    kind = type(value)
    is_model = hasattr(kind, "_meta") and hasattr(value, "pk")
    hint = "pass its primary key" if is_model else _HINTS.get(kind.__name__, "")
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    raise _Refused(f"{name} is not JSON" + (f"; {hint}" if hint else ""))


_Item = TypeVar("_Item")


class _Walk:
    """One pass over a value: gives a copy made of nothing but JSON's own types, or raises _Refused."""

    __slots__ = ("budget", "has_large_floats")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.has_large_floats = False

    def text(self, value: str) -> str:
        if "\x00" in value:
            raise _Refused("a NUL character cannot be stored")
        if not value.isascii() and _UNSTORABLE.search(value):
            raise _Refused("a lone surrogate is not text")
        return value

    def spend(self, amount: int) -> None:
        # Each item takes a byte at least, so this ends the walk through lists that hold each other
        # over and over long before memory does.
        self.budget -= amount
        if self.budget < 0:
            raise _TooLarge

    def plain(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        kind = type(value)
        if kind is str:
            if len(value) > 256:
                self.spend(len(value))
            return self.text(value)
        if kind is int:
            return value if -_BIG < value < _BIG else _checked_integer(value)
        if value is None or kind is bool:
            return value
        if kind is float:
            if not isfinite(value):
                raise _Refused(f"{'NaN' if value != value else 'Infinity'} is not JSON")
            if not -1e16 < value < 1e16:
                self.has_large_floats = True
            return value
        if kind is list or kind is tuple:
            return self.items(value, depth)
        if kind is dict:
            return self.members(value, depth)
        return self.other(value, depth)

    def other(self, value: Any, depth: int) -> Any:
        match value:
            case str():
                return self.plain(str.__str__(value), depth)
            case int():
                return self.plain(int.__int__(value), depth)
            case float():
                return self.plain(float.__float__(value), depth)
            case bytes():
                try:
                    return self.plain(value.decode(), depth)
                except UnicodeDecodeError:
                    raise _Refused("bytes that are not UTF-8 are not JSON; pass base64 text") from None
            case Mapping():
                return self.members(dict(self.counted(value.items())), depth)
            case Sequence():
                return self.items(list(self.counted(value)), depth)
        _refuse_type(value)

    def counted(self, values: Iterable[_Item]) -> Iterator[_Item]:
        """Count items as they come: a user's class may yield more than its len() returns, even endlessly."""
        for value in values:
            self.spend(1)
            yield value

    def items(self, values: Sequence[Any], depth: int) -> list[Any]:
        if depth == 0:
            raise _Refused(f"nesting deeper than {MAX_DEPTH}")
        self.spend(len(values))
        result = []
        index = 0
        try:
            for value in values:
                result.append(self.plain(value, depth - 1))
                index += 1
        except _Refused as refused:
            refused.path.append(f"[{index}]")
            raise
        return result

    def members(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        if depth == 0:
            raise _Refused(f"nesting deeper than {MAX_DEPTH}")
        self.spend(len(values))
        result: dict[str, Any] = {}
        key: Any = ""
        try:
            for key, value in values.items():
                name = self.key(key)
                if name in result:
                    raise _Refused("two keys are the same once they are text")
                result[name] = self.plain(value, depth - 1)
        except _Refused as refused:
            refused.path.append(f"[{_shown(key)}]")
            raise
        return result

    def key(self, key: Any) -> str:
        """Give the text a mapping's key becomes in JSON."""
        match key:
            case str():
                return self.text(str.__str__(key))
            case bytes() | int() | float() | None:
                plain = self.plain(key)
                return plain if isinstance(plain, str) else json.dumps(plain)
        raise _Refused(f"{type(key).__qualname__} is not a JSON key")


class _LenientWalk(_Walk):
    """For values that exist already: what cannot be stored in a text is written out visibly."""

    __slots__ = ()

    def text(self, value: str) -> str:
        return escape(value)


def _shown(key: Any) -> str:
    text = json.dumps(key) if isinstance(key, str | int | float | None) else repr(key)
    return text if len(text) <= 60 else text[:57] + "..."


def _written(value: Any, walk: _Walk) -> bytes:
    return msgspec.json.encode(value) if not walk.has_large_floats else _with_large_floats(value).encode()


def _with_large_floats(value: Any) -> str:
    # jsonb keeps numbers as decimals: "1e22" comes back as 10000000000000000000000, an int.
    match value:
        case dict():
            members = (f"{_with_large_floats(key)}:{_with_large_floats(item)}" for key, item in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_with_large_floats, value)) + "]"
        case float() if not -1e16 < value < 1e16:
            return f"{Decimal(repr(value)):f}.0"
    return msgspec.json.encode(value).decode()


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Read what a function or class takes."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # Names imported under TYPE_CHECKING are no reason to fail.
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a task's function takes, its context left out; made once per function."""

    signature: inspect.Signature
    positional: tuple[str, ...]  # names in order
    variable: str | None  # the name of *args
    fewest: float  # positional arguments in a call without keywords; infinite where a keyword must be given
    context: str | None
    is_context_positional: bool

    def name_of(self, index: int) -> str:
        """Say which parameter a positional argument is."""
        if index < len(self.positional):
            return repr(self.positional[index])
        return f"'*{self.variable}'[{index - len(self.positional)}]"

    def problem(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Say why the arguments do not fit, None when they do."""
        if not kwargs:
            # The common case in a fifth of the time of Signature.bind().
            if self.fewest <= len(args) <= len(self.positional):
                return None
        elif self.context in kwargs:
            return f"argument {self.context!r} is given by the executor"
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return None


@lru_cache(maxsize=4096)
def parameters_of(function: Callable[..., Any], takes_context: bool) -> Parameters:
    """Read what a function takes. A decorator that changes the parameters should set __signature__."""
    signature = signature_of(function)
    parameters = list(signature.parameters.values())
    context = parameters.pop(0) if takes_context and parameters else None
    kinds = inspect.Parameter
    by_position = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    required = [p.kind for p in parameters if p.default is kinds.empty]
    return Parameters(
        signature=signature.replace(parameters=parameters),
        positional=tuple(p.name for p in parameters if p.kind in by_position),
        variable=next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), None),
        fewest=inf if kinds.KEYWORD_ONLY in required else sum(map(by_position.count, required)),
        context=None if context is None else context.name,
        is_context_positional=context is None or context.kind in by_position,
    )


def encode_arguments(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    takes_context: bool = False,
    max_bytes: int,
) -> tuple[str, str]:
    """
    Give the JSON text of a task's arguments, checked against its function.

    name: what the errors call it, say `send_receipt()`. max_bytes: of both texts together, in UTF-8.
    Raises InvalidArguments, PayloadTooLarge in its place beyond that, which names the argument by its parameter and the path
    inside it.
    """
    parameters = parameters_of(function, takes_context)
    problem = parameters.problem(args, kwargs)
    if problem is not None:
        raise InvalidArguments(f"{name}: {problem}")
    walk = _Walk(max_bytes)
    place: int | str = 0
    try:
        plain_args = []
        for place, value in enumerate(args):  # noqa: B007 - read by the except clauses
            plain_args.append(walk.plain(value))
        plain_kwargs = {}
        for place, value in kwargs.items():
            plain_kwargs[walk.key(place)] = walk.plain(value)
        args_text, kwargs_text = _written(plain_args, walk), _written(plain_kwargs, walk)
    except _Refused as refused:
        shown = parameters.name_of(place) if isinstance(place, int) else ascii(place)
        raise InvalidArguments(f"{name}: argument {refused.at(shown)}") from None
    except _TooLarge:
        shown = parameters.name_of(place) if isinstance(place, int) else ascii(place)
        raise PayloadTooLarge(f"{name}: argument {shown}: {_limit(max_bytes)}") from None
    if len(args_text) + len(kwargs_text) > max_bytes:
        sizes = {parameters.name_of(i): _size(value) for i, value in enumerate(plain_args)}
        sizes |= {ascii(key): _size(value) for key, value in plain_kwargs.items()}
        largest = max(sizes, key=sizes.__getitem__)
        total = len(args_text) + len(kwargs_text)
        raise PayloadTooLarge(
            f"{name}: argument {largest} takes {sizes[largest]:,} of {total:,} bytes: {_limit(max_bytes)}"
        )
    return args_text.decode(), kwargs_text.decode()


def _limit(max_bytes: int) -> str:
    return f"more than {max_bytes:,} bytes of JSON in all (MAX_PAYLOAD_BYTES); pass a reference"


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def encode(value: Any, *, place: str, max_bytes: int) -> str:
    """Give the JSON text of a value. Raises InvalidArguments, which calls the value `place`."""
    try:
        return _encoded(_Walk(max_bytes), value, max_bytes)
    except _Refused as refused:
        raise InvalidArguments(refused.at(place)) from None
    except _TooLarge:
        raise PayloadTooLarge(f"{place}: {_limit(max_bytes)}") from None


def encode_message(body: Any, *, max_bytes: int) -> str:
    """Give the JSON text of a message's body: JSON, or what msgspec makes JSON of, such as a dataclass."""
    return encode(plain(body), place="message", max_bytes=max_bytes)


def check_dedupe_key(value: str | None) -> str | None:
    """Give a message's dedupe key as it is. Raises InvalidArguments for what a row cannot hold."""
    if value is None or is_text(value, MAX_DEDUPE):
        return value
    raise InvalidArguments(f"message: dedupe_key must be a text of 1 to {MAX_DEDUPE} characters, not {value!r:.200}")


def plain(value: Any) -> Any:
    """Turn dataclasses, structs, datetimes and their like into JSON's own types; leaves the rest to the refusals."""
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return value


def encode_result(value: Any, *, max_bytes: int) -> str:
    """
    Give the JSON text of a task's return value.

    NUL characters and lone surrogates are written out as text: the work is done, its answer matters.
    Raises InvalidResult for everything else that JSON has no word for, and beyond max_bytes.
    """
    try:
        return _encoded(_LenientWalk(max_bytes), value, max_bytes)
    except _Refused as refused:
        raise InvalidResult(f"The return value cannot be stored: {refused.at('result')}") from None
    except _TooLarge:
        raise InvalidResult(f"The return value is too large: {_limit(max_bytes)}") from None
    except Exception as error:
        raise InvalidResult(f"The return value cannot be read: {error!r}") from error


def _encoded(walk: _Walk, value: Any, max_bytes: int) -> str:
    text = _written(walk.plain(value), walk)
    if len(text) > max_bytes:
        raise _TooLarge
    return text.decode()


def is_text(value: Any, limit: int) -> bool:
    """Whether a column of text can hold it: something, no more characters than that, none that must be escaped."""
    return isinstance(value, str) and 0 < len(value) <= limit and escape(value) == value


def escape(text: str) -> str:
    """Write NUL characters and lone surrogates out, as \\u0000."""
    if "\x00" not in text and text.isascii():
        return text
    return _UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean_text(text: str, limit: int) -> str:
    """Make a text storable and at most about `limit` characters long, leaving out its middle."""
    return escape(cut(text, limit))


def cut(text: str, limit: int) -> str:
    """Leave out the middle of a text of more than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit // 2, limit - limit // 2
    return f"{text[:head]}{left_out(len(text) - limit)}{text[len(text) - tail :]}"


def left_out(characters: int) -> str:
    """Return the note that replaces the middle of a text."""
    return f"\n... {characters:,} characters left out ...\n"


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


def decode(text: str) -> Any:
    """Read stored JSON text. Raises ValueError for whatever Python cannot read."""
    try:
        # What a database wrote has no spaces around it; to look for them takes twice as long as to read "[1]".
        try:
            value, end = _scan(text, 0)
        except StopIteration:  # no value begins here
            end = -1
        return value if end == len(text) else _decoder.decode(text)
    except RecursionError:
        raise ValueError("JSON nested deeper than Python reads") from None
