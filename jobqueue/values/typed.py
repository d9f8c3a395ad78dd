"""Read the State and the Message of an actor from JSON, by their types."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec


class Reading(NamedTuple):
    """The parts of a type that are read in different ways."""

    by_type: dict[str, Any]  # the dataclasses of a union by their `type`
    other: Any  # all other members of the union; None if there are none


class Typed(msgspec.Struct):
    """The `type` of any JSON object."""

    type: Any = None


def decode_typed(text: str, kind: Any) -> Any:
    """Return the value of JSON text. Raises ValueError if it does not fit the type."""
    try:
        return msgspec.json.decode(text, type=member_for(text, kind))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from error


def member_for(text: str, kind: Any) -> Any:
    """Return the member of a union of dataclasses that the JSON names, or the type itself if it is no such union."""
    by_type, other = choose_reading(kind)
    if not by_type:
        return other
    try:
        named = msgspec.json.decode(text, type=Typed).type
    except msgspec.ValidationError:  # no object
        named = None
    if isinstance(named, str) and named in by_type:
        return by_type[named]
    if other is None:
        raise ValueError(f"`type` must be one of {', '.join(map(repr, by_type))}, not {named!r}")
    return other


@cache
def choose_reading(kind: Any) -> Reading:
    """Return how to read a type. Raises TypeError if that is impossible, NameError for a name not defined yet."""
    try:
        msgspec.json.Decoder(kind)
    except TypeError:  # msgspec knows no union of dataclasses
        members = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else ()
        tagged: list[Any] = [member for member in members if is_dataclass(member)]
        if not tagged:
            raise
    else:
        return Reading({}, kind)
    by_type: dict[str, Any] = {}
    for member in tagged:
        for name in literal_names(member):
            if name in by_type:
                raise TypeError(f"{by_type[name].__name__} and {member.__name__} have the same `type` {name!r}")
            by_type[name] = member
    others = tuple(member for member in members if member not in tagged)
    other = Union[others] if others else None  # noqa: UP007 - of a tuple
    return Reading(by_type, None if other is None else choose_reading(other).other)


def literal_names(member: Any) -> tuple[str, ...]:
    """Return the values of a dataclass's `type`. Raises TypeError if it has no such field."""
    msgspec.json.Decoder(member)
    hint = get_type_hints(member).get("type")
    names = get_args(hint) if get_origin(hint) is Literal else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"the dataclasses of a union need a field such as `type: Literal['publish'] = 'publish'`, "
            f"and {member.__name__} has none"
        )
    return names
