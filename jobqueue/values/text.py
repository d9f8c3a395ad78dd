"""
Text from outside: what a database can store, what a terminal can bear, and the name that a misspelled one means.

And numbers as text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import get_language

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # NUL and lone surrogates, which PostgreSQL refuses


def is_text(value: Any, limit: int) -> bool:
    """Return whether a value is a text of 1 to `limit` characters that a column can store."""
    return issubclass(type(value), str) and 0 < len(value) <= limit and escape(value) == value


def escape(text: str) -> str:
    """Write NUL characters and lone surrogates as \\u0000."""
    if "\x00" not in text and text.isascii():
        return text
    return UNSTORABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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


# Control characters, separators of lines and paragraphs, marks that change the direction of text, and lone surrogates.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text as one line, with control characters as escapes, so that it cannot control a terminal."""
    if text.isprintable():  # the usual case, in a fifth of the time
        return text
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with all other control characters as escapes."""
    return "\n".join(map(printable, text.split("\n")))


def short_repr(value: Any, limit: int = 200) -> str:
    """Return the repr() of a caller's value for an error, cut to a length; its type if it has none."""
    try:
        return repr(value)[:limit]
    except Exception:  # noqa: BLE001 - code of the value itself, or an integer of too many digits
        return f"an object of {type(value).__qualname__}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" with the most similar name, upper and lower case aside; nothing without one."""
    by_fold = {candidate.casefold(): candidate for candidate in names}
    similar = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return f" (did you mean {by_fold[similar[0]]!r}?)" if similar else ""


def number_text(number: float, spec: str = "") -> str:
    """Return a number with the separators of the active language: 3,000 or 3.000. spec: of its digits, such as .2f."""
    if get_language() is None:  # the command line: Django would leave out the separators
        return f"{number:,{spec}}"
    return number_format(f"{number:{spec}}", force_grouping=True)
