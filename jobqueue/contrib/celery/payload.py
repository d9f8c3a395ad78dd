"""Arguments and results as the JSON that Celery's serializer writes, so that dates and decimals arrive as such."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.utils.functional import Promise

TYPE, VALUE = "__type__", "__value__"
ENCODERS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "datetime", datetime.isoformat),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (Decimal, "decimal", str),
    (UUID, "uuid", lambda value: {"hex": value.hex, "version": value.version}),
)
DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda parts: UUID(**parts),
    "bytes": lambda text: text.encode(),
    "base64": lambda text: base64.b64decode(text.encode()),
}


def to_json(value: Any) -> Any:
    """Return a value as JSON. What has no form of JSON stays as it is: enqueue() then refuses it, and names it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {key: to_json(kept) for key, kept in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(kept) for kept in value]
    if hasattr(value, "__json__"):
        return to_json(value.__json__())
    if isinstance(value, Promise):
        return str(value)
    if isinstance(value, bytes):
        try:
            return {TYPE: "bytes", VALUE: value.decode()}
        except UnicodeDecodeError:
            return {TYPE: "base64", VALUE: base64.b64encode(value).decode()}
    for kind, name, encode in ENCODERS:
        if isinstance(value, kind):
            return {TYPE: name, VALUE: encode(value)}
    return value


def from_json(value: Any) -> Any:
    """Return the value of to_json()."""
    if isinstance(value, list):
        return [from_json(kept) for kept in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {TYPE, VALUE} and value[TYPE] in DECODERS:
        return DECODERS[value[TYPE]](value[VALUE])
    return {key: from_json(kept) for key, kept in value.items()}
