"""The log of changes by command: logger `jobqueue.cli`, INFO. It has no arguments of tasks and no messages."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__.rpartition(".")[0])

MAX_IDS = 20  # in one line


def log(event: str, by: str | None = None, /, **values: object) -> None:
    """Log one line. by: the name given with --by."""
    user = f"shell user {shell_user()}" if by is None else f"{by!r} (shell user {shell_user()})"
    pairs = "".join(f" {name}={value!r}" for name, value in values.items() if value not in (None, ""))
    logger.info("command.executed command=%s by=%s%s", event, user, pairs)


def list_ids(ids: Sequence[object]) -> str:
    """List the first ids, and the number of the others."""
    more = f" and {len(ids) - MAX_IDS:,} more" if len(ids) > MAX_IDS else ""
    return ", ".join(map(str, ids[:MAX_IDS])) + more


def shell_user() -> str:
    """Return the system's user, or nothing if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
