"""The connections of the executor's own threads, and whether the database is reachable."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import django.db
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.engine import configure_session, is_locked, is_slow, sqlstate_of
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

FIRST_WAIT_SECONDS = 0.05
MAX_WAIT_SECONDS = 2.0
PREPARE_AT = 2  # the second time a statement is bound by the server, it is prepared
LOG_AGAIN_SECONDS = 60.0  # between two lines about connections that hang
SHUTDOWN = ("57P",)  # the server ends: class of SQLSTATE
STATEMENT_GONE = ("26000", "42P05")  # the name of a prepared statement means nothing here, or something else


class ReconnectBackoff:
    """The wait before the next attempt to connect: exponential from 50 ms to 2 s, with jitter."""

    def __init__(self, longest_seconds: float = MAX_WAIT_SECONDS) -> None:
        self._longest = longest_seconds
        self.tries = 0

    def next_seconds(self) -> float:
        wait = min(self._longest, FIRST_WAIT_SECONDS * 2.0 ** min(self.tries, 20))
        self.tries += 1
        return wait * random.uniform(0.75, 1.0)

    def reset(self) -> None:
        self.tries = 0


class DatabaseState:
    """
    Whether the database is reachable. One line in the log when it becomes unreachable, one when all threads are back.

    A thread that asks rarely finds its connection dead after the others have reconnected. That is the end of the same
    outage, and is not logged again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._down: set[str] = set()
        self._last_over_at = float("-inf")
        self.last_lost_at = float("-inf")  # monotonic: when a thread last found that its connection was gone
        self._last_good_at: dict[str, float] = {}

    @property
    def is_unreachable(self) -> bool:
        return self._since is not None

    def lost(self, connection: str, error: Exception) -> None:
        with self._lock:
            self.last_lost_at = now = time.monotonic()
            if self._since is None and self._last_good_at.get(connection, now) < self._last_over_at:
                self._last_good_at[connection] = now
                logger.debug("database.reconnected connection=%s error=%s", connection, format_first_line(error))
                return
            self._down.add(connection)
            if self._since is None:
                self._since = now
                logger.warning("database.unreachable error=%s", format_first_line(error))

    def reached(self, connection: str) -> None:
        self._last_good_at[connection] = time.monotonic()
        if self._since is None:
            return
        with self._lock:
            self._down.discard(connection)
            if self._since is not None and not self._down:
                self._last_over_at = time.monotonic()
                logger.warning("database.reconnected after_s=%.1f", self._last_over_at - self._since)
                self._since = None


class GuardedConnection:
    """
    The database connection of one of the executor's own threads, and a limit on how long it may hang.

    In a network that drops packets a call waits for ever. Keepalives and statement_timeout do not help; another thread
    has to shut down the socket.
    The server's session gets the same limit, so that it does not go on with what we have given up.
    prepares: whether to prepare statements where no pooler is in between. Behind a pooler another client may have
    prepared another statement under the same name, which the server would execute instead.
    """

    def __init__(self, name: str, database: str, limit_seconds: float, *, prepares: bool = False) -> None:
        self.name = name
        self.database = database
        self.limit_seconds = limit_seconds
        self._busy: tuple[float, object] | None = None
        self._began_at = 0.0  # of the current call
        self._was_cut = False  # by the watchdog, in the current call
        self._logged_at = float("-inf")  # when a cut was logged
        self._prepares, self._is_pooled = prepares, False
        self._prepared: Any = None  # the connection that was set up last

    def __enter__(self) -> GuardedConnection:
        self.restart()
        return self

    def restart(self) -> None:
        """Give the next call the full time. Replace a connection that was closed. Raises django.db.Error."""
        wrapper = connections[self.database]
        self._began_at, self._was_cut = float("inf"), False  # a login that hangs is no slow call
        self._busy = (time.monotonic(), wrapper)
        if getattr(wrapper.connection, "closed", False):
            discard_connection(wrapper)
        if wrapper.vendor == "postgresql" and wrapper.connection is not self._prepared:
            self._set_up(wrapper)
        self._began_at = time.monotonic()

    def _set_up(self, wrapper: BaseDatabaseWrapper) -> None:
        """Set the session's limits, and prepare statements, where no pooler is in between. Raises django.db.Error."""
        wrapper.ensure_connection()
        raw = wrapper.connection
        with wrapper.wrap_database_errors:
            is_own = configure_session(raw, self.limit_seconds, prepares=self._prepares, is_pooled=self._is_pooled)
        self._prepared = raw
        if is_own and self._prepares:
            raw.prepare_threshold = PREPARE_AT
        if not is_own and not self._is_pooled:
            self._prepares, self._is_pooled = False, True
            logger.info("database.pooler_detected connection=%s hint=Prepared statements are off.", self.name)

    @property
    def is_open(self) -> bool:
        """Return whether this thread's connection can be used."""
        raw = connections[self.database].connection
        return raw is not None and not getattr(raw, "closed", False)

    def has_timed_out(self, error: Exception) -> bool:
        """
        Return whether the last call took too long, for the server or for us. The database is reachable then.

        A connection that is lost late in a call counts: a pooler cuts without a reason, and so does the watchdog.
        """
        if is_slow(error) or is_locked(error):
            return True
        is_late = self._was_cut or time.monotonic() - self._began_at > self.limit_seconds / 2
        return is_late and not self.is_open and sqlstate_of(error)[:3] not in SHUTDOWN

    def __exit__(self, *exc_info: object) -> None:
        self._busy = None
        connections[self.database].queries_log.clear()  # with DEBUG on, Django keeps thousands with their parameters

    def drop(self, error: Exception | None = None) -> None:
        """Close this thread's connection; the next call opens a new one. error: what made it useless."""
        if getattr(getattr(error, "__cause__", None), "sqlstate", None) in STATEMENT_GONE and self._prepares:
            self._prepares, self._is_pooled = False, True
            logger.warning(  # a pooler that passes on the server's own numbers
                "database.pooler_detected connection=%s hint=Prepared statements were lost and are now off.", self.name
            )
        self._busy = None
        discard_connection(connections[self.database])

    def cut_if_hung(self) -> bool:
        """Shut down a connection that has been silent for too long. The watchdog calls it."""
        busy = self._busy
        # A little later than the server, which can say why.
        if busy is None or time.monotonic() - busy[0] < self.limit_seconds + min(1.0, self.limit_seconds / 4):
            return False
        raw = getattr(busy[1], "connection", None)
        if not hasattr(raw, "fileno"):  # none yet, or SQLite's, which does not hang on a network
            return False
        self._busy, self._was_cut = (time.monotonic(), busy[1]), True
        self._log_cut(logging.ERROR if time.monotonic() - self._logged_at >= LOG_AGAIN_SECONDS else logging.DEBUG)
        try:
            shutdown_socket(raw)
        except Exception as error:  # noqa: BLE001 - the driver may raise anything for a connection that is closed
            logger.warning("connection.close_failed connection=%s error=%s", self.name, format_first_line(error))
        return True

    def _log_cut(self, level: int) -> None:
        """Log now and then: a lock on a table may last for minutes, and each call meets it."""
        if level == logging.ERROR:
            self._logged_at = time.monotonic()
        logger.log(
            level,
            "database.timed_out connection=%s after_s=%.0f hint=The connection is closed.",
            self.name,
            self.limit_seconds,
        )


def connect_once(database: str) -> Exception | None:
    """Open a connection beside the caller's, and close it again. Return the error, if there was one."""
    wrapper = connections[database].copy()
    try:
        wrapper.ensure_connection()
    except django.db.Error as error:
        return error
    finally:
        discard_connection(wrapper)
    return None


def discard_connection(wrapper: BaseDatabaseWrapper) -> None:
    """Close a connection in any state, with any transaction. Django's pool must not give it to others."""
    if wrapper.connection is not None:
        quietly(wrapper.connection.close)
    quietly(wrapper.close)  # returns it to Django's pool, if there is one
    wrapper.connection = None


def quietly(close: Callable[[], object]) -> None:
    try:
        close()
    except Exception as error:  # noqa: BLE001 - it may be closed already, which is as good
        logger.debug("connection.close_failed error=%s", format_first_line(error))


def shutdown_socket(raw: Any) -> None:
    """
    Shut down the socket of a connection that another thread uses, so that its calls fail. The owner closes it.

    If this thread closed it, libpq would free memory that the owner's call still uses, and the file number could belong
    to the next connection. SQLite has no socket, and may be closed from any thread. Raises what the driver raises for a
    closed connection; OSError.
    """
    if not hasattr(raw, "fileno"):
        raw.close()
        return
    number = raw.fileno()
    copy = os.dup(number)
    try:
        copied = socket.socket(fileno=copy)
    except OSError:  # no socket: the connection was closed, and its number was given to a file
        os.close(copy)
        raise
    with copied:
        if raw.fileno() == number:  # otherwise the number belongs to another socket
            copied.shutdown(socket.SHUT_RDWR)
