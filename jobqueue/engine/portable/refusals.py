"""Refusals: errors of the values that are written, as opposed to troubles of the database."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, DataError, IntegrityError

from jobqueue.exceptions import DuplicateKey, MessageAlreadyConsumed, TaskFinished, TaskNotFound

REFUSALS = (
    DataError,
    IntegrityError,
    ValueError,
    OverflowError,
    TaskFinished,
    TaskNotFound,
    MessageAlreadyConsumed,
    DuplicateKey,
)
# Files of PostgreSQL that report the end of transaction ids, or of blocks in a file: no outcome can be written then.
SERVER_LIMITS = ("varsup.c", "multixact.c", "bufmgr.c", "md.c")


def is_refusal(error: Exception) -> bool:
    """Whether the values caused the error. After any other error of the database, the commit is retried."""
    if isinstance(error, REFUSALS):
        return True
    cause: Any = error.__cause__
    match str(getattr(cause, "sqlstate", "") or "")[:2]:
        case "54":  # program limit exceeded: a jsonb too large, say, arrives as an OperationalError
            return cause.diag.source_file not in SERVER_LIMITS
        case "P0":  # a trigger of the site raised it
            return True
        case "":
            return False
    return type(error) is DatabaseError  # and this one a state of its own, which no driver knows
