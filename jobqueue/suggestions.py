"""What a person may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" with the most similar name, upper and lower case aside; nothing without one."""
    by_fold = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return f" (did you mean {by_fold[near[0]]!r}?)" if near else ""
