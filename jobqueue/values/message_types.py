"""
The types of messages to workflows: a JSON object names its type in the member `type`.

`send()` adds the name of the class to a dataclass or Struct without a `type` of its own. SQL and HTTP write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import msgspec

from jobqueue.values.json import as_builtins, decode
from jobqueue.values.typed import literal_names

MEMBER = "type"
PLAIN: tuple[type, ...] = (dict, list, str, int, float, bool, type(None))


class Unfit(NamedTuple):
    """Why a message is not of the type that it names."""

    problem: str


def with_type(body: Any) -> Any:
    """Return a message in JSON's own types, with the name of its class."""
    value = as_builtins(body)
    if isinstance(value, dict) and not isinstance(body, dict) and MEMBER not in value:
        return {MEMBER: type(body).__name__, **value}
    return value


def names_of(kind: Any) -> tuple[str, ...]:
    """
    Return the names by which messages of a class are found.

    Raises TypeError for something else than a class, and for a dataclass whose field `type` is no Literal.
    """
    if not isinstance(kind, type):
        raise TypeError(f"receive() takes classes, not {kind!r:.200}.")
    if kind not in PLAIN and issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None:
        return (str(kind.__struct_config__.tag),)
    if is_dataclass(kind) and any(field.name == MEMBER for field in fields(kind)):
        return literal_names(kind)
    return (kind.__name__,)


def names_in(text: str) -> set[str]:
    """Return the names by which a message can be found: its `type`, and the name of its kind of JSON."""
    value = decode(text)
    names = {type(value).__name__} | ({"float"} if type(value) is int else set())
    if isinstance(value, dict) and isinstance(value.get(MEMBER), str):
        names.add(value[MEMBER])
    return names


def read_message(text: str, kinds: Iterable[type]) -> Any:
    """
    Return a message as the first of the kinds that it names; without kinds, as plain JSON.

    Return Unfit if it names none of them, or does not fit the one that it names.
    """
    value, names, problem = decode(text), names_in(text), "it has another type"
    if not (kinds := tuple(kinds)):
        return value
    for kind in kinds:
        if names.isdisjoint(names_of(kind)):
            continue
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problem = f"it is no valid {kind.__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - of a __post_init__
            problem = f"it is no valid {kind.__name__}: {error!r:.200}"
    return Unfit(problem)
