"""Who changed what by command, in the site's log: logger `jobqueue.cli`, INFO. No arguments of tasks, no messages."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__.rpartition(".")[0])

NAMED = 20  # ids in one line


def note(what: str, by: str | None = None, /, **facts: object) -> None:
    """Write one line. by: whom the user of the system says to act for."""
    who = f"shell user {user()}" if by is None else f"{by!r} (shell user {user()})"
    said = "".join(f" {name}={fact!r}" for name, fact in facts.items() if fact not in (None, ""))
    logger.info("%s by=%s%s", what, who, said)


def some(ids: Sequence[object]) -> str:
    """Name ids, the first of them where they are many."""
    more = f" and {len(ids) - NAMED:,} more" if len(ids) > NAMED else ""
    return ", ".join(map(str, ids[:NAMED])) + more


def user() -> str:
    """Give the user of the system; nothing where it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
