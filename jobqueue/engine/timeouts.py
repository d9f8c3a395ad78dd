"""Whether an error of the database is a timeout. A server that cancels a statement is reachable."""

from __future__ import annotations

from jobqueue.engine.database import LockTimeout

LOCKED = "55P03"  # lock_timeout
# statement_timeout or pg_cancel_backend(), idle_in_transaction_session_timeout, transaction_timeout
SLOW = ("57014", "25P03", "25P04")
UNREACHABLE = ("08", "57P")  # classes of SQLSTATE: the connection or the server is gone

LOCK_WAIT = "500ms"  # for a lock of another session: of each statement of an executor's loop
SHORT_WAIT = "10ms"  # the same for a statement that has waited before


def sqlstate_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error of Django; "" if the server gave none."""
    cause = error.__cause__
    while cause is not None and not hasattr(cause, "sqlstate"):  # our own errors have one of Django as their cause
        cause = cause.__cause__
    return str(getattr(cause, "sqlstate", None) or "")


def is_locked(error: BaseException) -> bool:
    """Return whether a statement has waited too long for a lock of another session."""
    return isinstance(error, LockTimeout) or sqlstate_of(error) == LOCKED


def is_slow(error: BaseException) -> bool:
    """Return whether the server ended a statement or a transaction because it took too long."""
    return sqlstate_of(error) in SLOW
