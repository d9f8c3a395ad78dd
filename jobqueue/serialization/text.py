"""Texts that a database can store, of limited length."""

from __future__ import annotations

import re
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # NUL and lone surrogates, which PostgreSQL refuses


def is_text(value: Any, limit: int) -> bool:
    """Return whether a value is a text of 1 to `limit` characters that a column can store."""
    return issubclass(type(value), str) and 0 < len(value) <= limit and escape(value) == value


def escape(text: str) -> str:
    """Write NUL characters and lone surrogates as \\u0000."""
    if "\x00" not in text and text.isascii():
        return text
    return UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean_text(text: str, limit: int) -> str:
    """Make a text storable and at most about `limit` characters long, without its middle."""
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
