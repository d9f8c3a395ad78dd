"""
JSON text for rows, and values from rows.

Values are normalized as Django's `normalize_json` does: sequences become lists, bytes become text. A value that
a database cannot store, or that Python cannot read back, is rejected before anything is written.
"""

from __future__ import annotations

from collections import UserString
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
from django.db import DatabaseError
from django.utils.functional import LazyObject, empty

from jobqueue.exceptions import InvalidArguments, InvalidResult, PayloadTooLarge
from jobqueue.values import kinds
from jobqueue.values.text import UNSTORABLE, escape, is_text, short_repr

MAX_DEPTH = 64
MAX_DEDUPE_KEY_CHARACTERS = 255
DEDUPE_KEY = kinds.text(MAX_DEDUPE_KEY_CHARACTERS)
# Python and msgspec read integers of at most 4,300 digits. msgspec counts the sign as one.
MAX_INTEGER = 10**4300 - 1
MIN_INTEGER = 1 - 10**4299
ADVICE: Mapping[str, str] = {
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
    "bytearray": "pass its decode(), or base64 text",
    "memoryview": "pass str(it, 'utf-8'), or base64 text",
    "UserString": "pass str() of it",
    "generator": "pass a list",
}


class Rejected(Exception):
    """A value that cannot be stored. path: indexes and keys that lead to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[Any] = []

    def describe(self, where: str) -> str:
        return f"{where}{''.join(f'[{step!a:.60}]' for step in self.path)}: {self}"


class Oversized(Rejected):
    """A value that takes more bytes than the limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"more than {max_bytes:,} bytes of JSON in all (MAX_PAYLOAD_BYTES); pass a reference")


class Normalizer:
    """
    Copies values into JSON's own types. Raises Rejected for a value that cannot be stored.

    escapes: write NUL characters and lone surrogates as escapes, in place of rejecting them.
    """

    __slots__ = ("_budget", "_escapes", "max_bytes")

    def __init__(self, max_bytes: int, *, escapes: bool = False) -> None:
        self.max_bytes = max_bytes
        # Each value takes at least one byte. The budget ends endless iterators, and lists that contain each other
        # many times, before memory runs out.
        self._budget = max_bytes
        self._escapes = escapes

    def encode(self, value: Any) -> str:
        """Return the JSON text of a value."""
        text = msgspec.json.encode(self.normalize(value))
        if len(text) > self.max_bytes:
            raise Oversized(self.max_bytes)
        return text.decode()

    def normalize(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        self._budget -= 1
        if self._budget < 0:
            raise Oversized(self.max_bytes)
        kind = type(value)  # most values have one of these types, and no code of their own
        if kind is str:
            return self._text(value)
        if value is None or kind is bool or (kind is int and MIN_INTEGER <= value <= MAX_INTEGER):
            return value
        try:
            match value:
                case str():
                    try:
                        text = str.__str__(value)
                    except TypeError:
                        return self.normalize(unwrapped(value), depth)
                    return self._text(text)
                case int():
                    try:
                        number = int.__int__(value)
                    except TypeError:
                        return self.normalize(unwrapped(value), depth)
                    if not MIN_INTEGER <= number <= MAX_INTEGER:
                        raise Rejected("an integer of more than 4300 digits cannot be read back")
                    return number
                case float():
                    try:
                        real = float.__float__(value)
                    except TypeError:
                        return self.normalize(unwrapped(value), depth)
                    if not isfinite(real):
                        raise Rejected(f"{'NaN' if real != real else 'Infinity'} is not JSON")
                    return real
            try:
                return self._composed(value, depth)
            except TypeError:
                if type(value) is value.__class__:
                    raise
            return self.normalize(unwrapped(value), depth)
        except (Rejected, DatabaseError, MemoryError):  # a lazy object may read the database
            raise
        except Exception as error:  # the value's own code
            raise Rejected(f"{_name_of(type(value))} cannot be read: {short_repr(error)}") from error

    def _composed(self, value: Any, depth: int) -> Any:
        match value:
            case dict() | Mapping():
                return self._members(value.items(), depth)
            case list() | tuple():
                return self._items(value, depth)
            case bytes():
                try:
                    return self._text(bytes(value).decode())
                except UnicodeDecodeError:
                    raise Rejected("bytes that are not UTF-8 are not JSON; pass base64 text") from None
            case bytearray() | memoryview() | UserString():  # for people no sequences, but bytes and text
                raise Rejected(_type_problem(value))
            case Sequence():
                return self._items(value, depth)
        if issubclass(type(value), LazyObject):
            return self.normalize(unwrapped(value), depth)
        raise Rejected(_type_problem(value))

    def _text(self, value: str) -> str:
        self._budget -= len(value)
        if self._budget < 0:
            raise Oversized(self.max_bytes)
        if ("\x00" in value or not value.isascii()) and UNSTORABLE.search(value):
            if not self._escapes:
                raise Rejected(
                    "a NUL character cannot be stored" if "\x00" in value else "a lone surrogate is not text"
                )
            return escape(value)
        return value

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        if depth == 0:
            raise Rejected(f"nesting deeper than {MAX_DEPTH}")
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.normalize(value, depth - 1))
        except Rejected as rejected:
            rejected.path.insert(0, len(items))
            raise
        return items

    def _members(self, values: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        if depth == 0:
            raise Rejected(f"nesting deeper than {MAX_DEPTH}")
        members: dict[str, Any] = {}
        key: Any = None
        try:
            for key, value in values:
                name = self.key(key)
                if name in members:
                    raise Rejected("two keys become the same text")
                members[name] = self.normalize(value, depth - 1)
        except Rejected as rejected:
            rejected.path.insert(0, key)
            raise
        return members

    def key(self, key: Any) -> str:
        """Return the text that a mapping's key becomes in JSON."""
        match key:
            case str() if issubclass(type(key), str):
                return self._text(str.__str__(key))
            case str() | bytes() | int() | float() | None:
                plain = self.normalize(key)
                return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
        raise Rejected(f"{type(key).__qualname__} is not a JSON key")


def unwrapped(value: Any) -> Any:
    """
    Evaluate a lazy object of Django, such as the nonce of a CSP.

    Raises Rejected for other objects that isinstance() takes for a type that they do not have, such as mocks.
    """
    if issubclass(type(value), LazyObject):
        inner = object.__getattribute__(value, "_wrapped")
        if inner is not empty:
            return inner
    claimed = value.__class__.__name__
    raise Rejected(f"{_name_of(type(value))} is not JSON, although its class is {claimed}; pass {claimed}() of it")


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _type_problem(value: Any) -> str:
    kind = type(value)
    is_model = hasattr(kind, "_meta") and hasattr(value, "pk")
    advice = "pass its primary key" if is_model else ADVICE.get(kind.__name__, "")
    return f"{_name_of(kind)} is not JSON" + (f"; {advice}" if advice else "")


def encode(value: Any, *, where: str, max_bytes: int) -> str:
    """Return the JSON text of a value. Raises InvalidArguments or PayloadTooLarge, which call the value `where`."""
    try:
        return Normalizer(max_bytes).encode(value)
    except Oversized as oversized:
        raise PayloadTooLarge(f"{where}: {oversized}") from None
    except Rejected as rejected:
        raise InvalidArguments(rejected.describe(where)) from rejected.__cause__


def encode_message(body: Any, *, max_bytes: int) -> str:
    """Return the JSON text of a message's body: JSON, or what msgspec makes JSON of, such as a dataclass."""
    return encode(as_builtins(body), where="message", max_bytes=max_bytes)


def check_dedupe_key(value: str | None) -> str | None:
    """Return a message's dedupe key unchanged. Raises InvalidArguments for one that a row cannot store."""
    if value is None or is_text(value, MAX_DEDUPE_KEY_CHARACTERS):
        return value
    raise InvalidArguments(f"message: dedupe_key {kinds.problem(value, DEDUPE_KEY)}")


def as_builtins(value: Any) -> Any:
    """Turn dataclasses, structs, datetimes and the like into JSON's own types. Return other values unchanged."""
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return value


def encode_result(value: Any, *, max_bytes: int) -> str:
    """
    Return the JSON text of a task's return value.

    NUL characters and lone surrogates become escapes, because the work is done and its result matters.
    Raises InvalidResult for every other value that JSON cannot represent, and for more than max_bytes.
    """
    if value is None:
        return "null"
    try:
        return Normalizer(max_bytes, escapes=True).encode(value)
    except Oversized as oversized:
        raise InvalidResult(f"The return value is too large: {oversized}") from None
    except Rejected as rejected:
        raise InvalidResult(f"The return value cannot be stored: {rejected.describe('result')}") from None
    except Exception as error:
        raise InvalidResult(f"The return value cannot be read: {error!r}") from error


CHECKPOINT = "checkpoint"  # the only member of the state of a function


def read_checkpoint(state: str) -> Any:
    """Return the checkpoint of a function from the text of its state; None if an actor has left another state."""
    value = decode(state)
    return value.get(CHECKPOINT) if isinstance(value, dict) else None


def decode(text: str) -> Any:
    """Read stored JSON text. Raises ValueError for text that Python cannot read."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("JSON nested deeper than Python reads") from None
