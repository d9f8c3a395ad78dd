"""Make text from outside, such as queue names and errors, safe for logs and terminals."""

from __future__ import annotations

import re
from typing import Any

# Control characters, separators of lines and paragraphs, marks that change the direction of text, and lone surrogates.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text as one line, with control characters as escapes, so that it cannot control a terminal."""
    if text.isprintable():  # the usual case, in a fifth of the time
        return text
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with all other control characters as escapes."""
    return "\n".join(map(printable, text.split("\n")))


def shown(value: Any, limit: int = 200) -> str:
    """Return the repr() of a caller's value for an error, cut to a length; its type if it has none."""
    try:
        return repr(value)[:limit]
    except Exception:  # noqa: BLE001 - code of the value itself, or an integer of too many digits
        return f"an object of {type(value).__qualname__}"
