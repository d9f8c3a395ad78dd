"""The keys of limits as rows store them: the name of the limit, a separator, and the key."""

from __future__ import annotations

SEPARATOR = ":"  # between the name of a limit and a key
AFTER_SEPARATOR = ";"  # the next character. All keys of a limit sort before its name with this character


def split_key(stored: str) -> tuple[str, str]:
    """Return the name of a limit and the key. stored: the text in the row."""
    name, _, key = stored.partition(SEPARATOR)
    return name, key
