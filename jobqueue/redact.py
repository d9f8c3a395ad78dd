"""Mask what OPTIONS["REDACT"] names, wherever people look at a task's values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any

MASK = "••••••"


def redact(value: Any, patterns: Sequence[str], *path: str) -> Any:
    """
    Copy a JSON value with every part masked whose path matches a pattern; letter case does not count.

    A path is the names and list positions on the way, joined by dots: `user.password`, `rows.0.token`.
    A pattern with a dot is matched against the whole path, one without also against a name alone;
    `*` stands for anything, dots included. path: where `value` itself stands.
    """
    if path and is_named(patterns, *path):
        return MASK
    match value:
        case dict():
            return {name: redact(part, patterns, *path, name) for name, part in value.items()}
        case list():
            return [redact(part, patterns, *path, str(place)) for place, part in enumerate(value)]
        case _:
            return value


def is_named(patterns: Sequence[str], *path: str) -> bool:
    """Whether a pattern names this path."""
    bare, dotted = _compile(tuple(patterns))
    whole = ".".join(path)
    return bool(bare.fullmatch(path[-1]) or bare.fullmatch(whole) or dotted.fullmatch(whole))


@lru_cache(maxsize=64)
def _compile(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    bare = [translate(pattern) for pattern in patterns if "." not in pattern]
    dotted = [translate(pattern) for pattern in patterns if "." in pattern]
    never = r"(?!)"
    return re.compile("|".join(bare) or never, re.IGNORECASE), re.compile("|".join(dotted) or never, re.IGNORECASE)
