"""Refusals: errors that the values of an outcome cause, not the state of the database."""

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
# Files of PostgreSQL that report exhausted transaction ids or blocks of a file. Then no outcome can be written.
SERVER_LIMITS = ("varsup.c", "multixact.c", "bufmgr.c", "md.c")


def is_refusal(error: Exception) -> bool:
    """Whether the values caused the error. After any other error of the database, the commit is retried."""
    if isinstance(error, REFUSALS):
        return True
    cause: Any = error.__cause__
    match str(getattr(cause, "sqlstate", "") or "")[:2]:
        case "54":  # program limit exceeded: for example, a jsonb that is too large
            return cause.diag.source_file not in SERVER_LIMITS
        case "P0":  # a trigger of the site raised it
            return True
        case "":
            return False
    return type(error) is DatabaseError  # a state that the driver does not know, perhaps of a trigger
