"""Django's connections in the threads that run bodies: opened lazily, and clean for the next body."""

from __future__ import annotations

import re
import select
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus

from jobqueue.executor.cursors import is_of_server, settings_of, tell
from jobqueue.executor.cut import cut_off
from jobqueue.executor.forks import leave_if_forked, this_process
from jobqueue.executor.standard_streams import LAST_STANDARD_STREAM
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

# What outlives its transaction, so that the next body would meet it. The connection is closed then: resetting it
# under a library that remembers what it has set (a search_path, say) would be worse than leaving it.
# What a function of the site's own does inside of the server cannot be seen from here.
LASTING = re.compile(
    r"(?:\A|;)(?:\s|--[^\n]*+|/\*.*?\*/)*+"
    r"(?:SET\s+(?!LOCAL\b|TRANSACTION\b|CONSTRAINTS\b)|(?:RESET|DISCARD|LISTEN|PREPARE|DECLARE|LOAD|PRAGMA|ATTACH|DO|CALL)\b"
    r"|CREATE\s+(?:OR\s+REPLACE\s+)?(?:LOCAL\s+|GLOBAL\s+)?TEMP)"
    r"|\b(?:set_config|setseed|pg_temp\s*\.|pg_(?:try_)?advisory_lock|INTO\s+(?:LOCAL\s+|GLOBAL\s+)?TEMP)",
    re.IGNORECASE | re.DOTALL,
)
LOOK_CHARACTERS = 2_000  # of a statement
MANY_CURSORS = 100
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class Session:
    """The connections of one thread, the current one between enter() and leave()."""

    def __init__(self) -> None:
        self.process = this_process()  # of the process that the thread belongs to
        self._wrappers: Sequence[BaseDatabaseWrapper] = ()  # all of Django's for this thread, open or not
        self._changed: set[Any] = set()  # connections of the driver, as the keys here
        self._as_opened: dict[Any, tuple[Any, ...]] = {}
        self._heard: Any = None  # the last statement that came through Django
        self._cursors: list[Any] = []  # that the server keeps, or has kept

    def enter(self) -> None:
        _current.session = self
        self._wrappers = connections.all()

    def leave(self) -> None:
        self.close()
        _current.session = None

    def tidy(self) -> None:
        """
        Discard connections with open transactions or new settings, close broken or old ones, clear logged queries.

        In a copy of the process, which the code that just ran has forked, end the copy.
        Django does not announce every connection with `connection_created`: the first statement after the login may
        fail, or a receiver before ours may raise. A connection that was not announced is broken or lacks our hooks, so
        it is discarded, too.
        """
        leave_if_forked(self.process)
        self._changed.update(cursor.connection for cursor in self._cursors if not cursor.closed)
        is_discarded, wrappers = False, connections.all()
        for wrapper in wrappers:
            try:
                is_discarded = self._tidy(wrapper) or is_discarded
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not used again
                logger.debug("connection.discarded error=%s", error)
                discard(wrapper)
                is_discarded = True
        self._wrappers = connections.all() if is_discarded else wrappers
        self._changed.clear()
        self._cursors.clear()
        self._heard = None
        if self._as_opened:
            kept = {wrapper.connection for wrapper in self._wrappers}
            self._as_opened = {raw: opened for raw, opened in self._as_opened.items() if raw in kept}

    def _tidy(self, wrapper: BaseDatabaseWrapper) -> bool:
        """Make one connection ready for the next body. Return whether it was discarded."""
        wrapper.queries_log.clear()
        raw = wrapper.connection
        if raw is None:
            return False
        is_changed = raw in self._changed or self._as_opened.get(raw) != driver_settings(wrapper)
        if is_changed or not is_as_new(wrapper):
            discard(wrapper)
            return True
        wrapper.close_if_unusable_or_obsolete()
        return False

    def check(self, atomic: str | None = None) -> None:
        """
        See that the body left no transaction open: what it wrote there would be undone.

        atomic: the alias of the database on which the body runs in a transaction of ours. Raises
        TransactionManagementError.
        """
        for wrapper in connections.all(initialized_only=True):
            is_ours = wrapper.alias == atomic and not wrapper.savepoint_ids
            if wrapper.connection is not None and is_in_transaction(wrapper) and not is_ours:
                raise TransactionManagementError(
                    f"The task left a transaction open on the database {wrapper.alias!r}; it was rolled back."
                )

    def close(self) -> None:
        """Throw all connections away, whatever state they are in. A copy of the process ends, as in tidy()."""
        leave_if_forked(self.process)
        for wrapper in connections.all(initialized_only=True):
            discard(wrapper)
        self._wrappers, self._changed, self._as_opened, self._cursors = connections.all(), set(), {}, []

    # --- from other threads

    def cancel(self) -> None:
        """Cancel on the server what the thread waits for."""
        for wrapper in self._wrappers:
            names = ("cancel_safe", "cancel", "interrupt")  # psycopg 3.2 and later, others, sqlite3
            cancel = next((found for name in names if (found := getattr(wrapper.connection, name, None))), None)
            if cancel is not None:
                # In a thread of its own: a network that is down must not hold up whoever tells us.
                threading.Thread(target=quietly, args=(cancel,), name="cancel", daemon=True).start()

    def cut(self) -> None:
        """Cut the thread's connections off: it cannot write any more."""
        for wrapper in self._wrappers:
            if (raw := wrapper.connection) is not None:
                quietly(partial(cut_off, raw))

    # --- what Django and the driver tell us

    def opened(self, wrapper: BaseDatabaseWrapper) -> None:
        if wrapper not in self._wrappers:  # a body has replaced Django's
            self._wrappers = [*self._wrappers, wrapper]
        if self._look not in wrapper.execute_wrappers:
            wrapper.execute_wrappers.append(self._look)
        if wrapper.vendor == "postgresql":
            tell(wrapper.connection, _hear)
        self._as_opened[wrapper.connection] = driver_settings(wrapper)

    def _look(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        wrapper, inner = context["connection"], getattr(context["cursor"], "cursor", None)
        self._heard = sql
        self._judge(wrapper.connection, sql)
        if is_of_server(inner):
            self._remember(inner)
        return execute(sql, params, many, context)

    def heard(self, cursor: Any, sql: Any) -> None:
        """Something is executed on a connection of the driver; we know of it already if Django was asked."""
        if sql is not self._heard:
            self._judge(cursor.connection, sql)
        if is_of_server(cursor):
            self._remember(cursor)

    def _judge(self, raw: Any, sql: Any) -> None:
        if not isinstance(sql, str) or LASTING.search(sql, 0, LOOK_CHARACTERS):
            self._changed.add(raw)

    def _remember(self, cursor: Any) -> None:
        if len(self._cursors) >= MANY_CURSORS:
            self._cursors = [one for one in self._cursors if not one.closed]
        self._cursors.append(cursor)


class _Current(threading.local):
    session: Session | None = None


_current = _Current()


def current() -> Session:
    """Give this thread's session."""
    assert _current.session is not None
    return _current.session


def tidy() -> None:
    """Let whatever just ran in this thread leave nothing behind; the loop's own thread has no session."""
    if _current.session is not None:
        _current.session.tidy()


def driver_settings(wrapper: BaseDatabaseWrapper) -> tuple[Any, ...]:
    return settings_of(wrapper.connection) if wrapper.vendor == "postgresql" else ()


def is_in_transaction(wrapper: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open, through Django or behind its back."""
    raw = wrapper.connection
    if wrapper.vendor == "postgresql":
        return wrapper.in_atomic_block or raw.info.transaction_status in OPEN
    return wrapper.in_atomic_block or bool(getattr(raw, "in_transaction", False))


def is_as_new(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is as Django opens it: autocommit, idle, without unread data."""
    raw = wrapper.connection
    if is_in_transaction(wrapper) or not wrapper.autocommit:
        return False
    return wrapper.vendor != "postgresql" or (
        raw.fileno() > LAST_STANDARD_STREAM  # otherwise the body closed a stream before it connected
        and raw.info.transaction_status == TransactionStatus.IDLE
        and raw.autocommit
        and not has_news(raw)
    )


def has_news(raw: Any) -> bool:
    """Whether the server said something that nobody asked for: that it closed the connection, most likely."""
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def discard(wrapper: BaseDatabaseWrapper) -> None:
    """Throw a connection away with whatever transaction is open on it."""
    if wrapper.connection is not None:
        quietly(wrapper.connection.close)
    quietly(wrapper.close)  # gives it back, where Django has a pool
    wrapper.connection = None
    del connections[wrapper.alias]


def quietly(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:  # noqa: BLE001 - it may be closed already, which is as good
        logger.debug("connection.close_failed error=%s", error)


def _hear(cursor: Any, sql: Any) -> None:
    if _current.session is not None:
        _current.session.heard(cursor, sql)


def _on_connection(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    if _current.session is not None:
        _current.session.opened(connection)


connection_created.connect(_on_connection, dispatch_uid="jobqueue.executor.sessions")
