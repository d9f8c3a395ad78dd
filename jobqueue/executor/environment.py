"""Variables of the environment that nearly are a flag's, and that nobody reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

PREFIX = "JOBQUEUE_"


def misspelt_variables(given: Iterable[str], flags: Collection[str]) -> str:
    """Say in one line which of the given variables are almost flags; nothing where none is."""
    ours = {name for name in given if name.startswith(PREFIX)}
    said = [f"{name} (did you mean {near}?)" for name in sorted(ours - set(flags)) for near in _nearest(name, flags)]
    return f"The environment has what run_executors does not read: {', '.join(said)}." if said else ""


def _nearest(name: str, flags: Collection[str]) -> list[str]:
    endings = {flag.removeprefix(PREFIX): flag for flag in flags}  # all begin alike, which is no likeness
    return [endings[end] for end in difflib.get_close_matches(name.removeprefix(PREFIX).upper(), endings, 1, 0.6)]
