"""Django's connections in the threads that run bodies: opened lazily, and reset for the next body."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus

from jobqueue.executor.database.connection import discard_connection, quietly, shutdown_socket
from jobqueue.executor.process_guard import LAST_STANDARD_STREAM, leave_if_forked, this_process
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

# Settings, role, listeners, advisory locks, temporary tables, cursors and prepared statements. psycopg notices it and
# forgets its own prepared statements.
RESET_SESSION = "DISCARD ALL"
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class TaskConnections:
    """
    The connections of one thread, the current ones between enter() and leave().

    After each body that used a connection, the session on the server is reset and Django's wrapper is replaced. The
    next body that needs the database connects through a new wrapper, which gets the reset session in place of a login.
    So Django and the site's receivers of `connection_created` set it up as they do after a login.
    """

    def __init__(self) -> None:
        self.process = this_process()  # of the process that the thread belongs to
        self._wrappers: Sequence[BaseDatabaseWrapper] = ()  # all of Django's for this thread, open or not
        self.kept: dict[str, BaseDatabaseWrapper] = {}  # by alias: replaced, with a connection that was reset
        self._driver_settings: dict[Any, tuple[Any, ...]] = {}  # by psycopg's connection, as Django opened it
        self._locals: Mapping[str, object] | None = None  # of the thread, where Django keeps its wrappers
        self._refused: tuple[str, BaseException] | None = None  # the last login that failed: alias and error

    def enter(self) -> None:
        _current.connections = self
        self._locals = locals_of_this_thread()
        self._watch_all()

    def leave(self) -> None:
        self._close_all()
        self._wrappers, _current.connections = (), None

    def reset(self) -> None:
        """
        Reset or close each connection that was used since the last call, and clear logged queries.

        In a copy of the process, which the code that just ran has forked, end the copy.
        """
        leave_if_forked(self.process)
        if self._is_used():
            self._release_all()
        for alias, idle in [*self.kept.items()] if self.kept else ():
            idle.close_if_unusable_or_obsolete()
            if idle.connection is None:
                del self.kept[alias]

    def _is_used(self) -> bool:
        """Return whether a wrapper has been used since the last reset(), also one that a body has put in."""
        if self._locals is None or self._driver_settings or self._refused is not None:
            return True
        for value in self._locals.values():
            if isinstance(value, BaseDatabaseWrapper) and (value.connection is not None or value.queries_log):
                return True
        return False

    def _release_all(self) -> None:
        for wrapper in connections.all():
            wrapper.queries_log.clear()
            if wrapper.connection is None:
                continue
            try:
                self._release(wrapper)
            except Exception as error:  # noqa: BLE001 - it is not used again
                logger.debug("connection.discarded error=%s", error)
                self._forget(wrapper)
        self._driver_settings.clear()
        self._refused = None
        self._watch_all()

    def _watch_all(self) -> None:
        """Let the thread's wrappers connect through us. Django has no hook for this, and its pool is shared."""
        self._wrappers = connections.all()
        for wrapper in self._wrappers:
            if "get_new_connection" not in vars(wrapper):
                wrapper.get_new_connection = partial(self._open, wrapper, wrapper.get_new_connection)  # type: ignore[method-assign]

    def _release(self, wrapper: BaseDatabaseWrapper) -> None:
        """Keep a connection for the next body, as long as CONN_MAX_AGE allows, or close it."""
        raw = wrapper.connection
        is_sound = wrapper.vendor == "postgresql" and is_as_new(wrapper)
        if not is_sound or self._driver_settings.get(raw) != driver_settings(raw):
            self._forget(wrapper)
            return
        if getattr(wrapper, "pool", None):
            raw.execute(RESET_SESSION)
            wrapper._configure_connection(raw)  # type: ignore[attr-defined]  # the pool does so only after a login
        wrapper.close_if_unusable_or_obsolete()
        if wrapper.connection is not None:
            raw.execute(RESET_SESSION)
            self._keep(wrapper)
        else:
            del connections[wrapper.alias]

    def _keep(self, wrapper: BaseDatabaseWrapper) -> None:
        if (older := self.kept.pop(wrapper.alias, None)) is not None:  # a body has opened a second one
            quietly(older.close)
        self.kept[wrapper.alias] = wrapper
        del connections[wrapper.alias]

    def _open(
        self, wrapper: BaseDatabaseWrapper, login: Callable[[dict[str, Any]], Any], parameters: dict[str, Any]
    ) -> Any:
        """Return the connection that was kept, or a new one."""
        idle = self.kept.pop(wrapper.alias, None)
        if idle is not None and not idle.connection.closed and not has_unread_input(idle.connection):
            wrapper.close_at = idle.close_at
            wrapper.isolation_level = idle.isolation_level  # type: ignore[attr-defined]  # of PostgreSQL's wrapper
            raw = idle.connection
        else:
            if idle is not None:
                quietly(idle.close)
            try:
                raw = login(parameters)
            except Exception as error:
                self.note_refused(wrapper.alias, error)
                raise
        if wrapper.vendor == "postgresql":
            self._driver_settings[raw] = driver_settings(raw)
        return raw

    def check(self, atomic: str | None = None) -> None:
        """
        See that the body left no transaction open: what it wrote there would be undone.

        atomic: the alias of the database on which the body runs in a transaction of ours. Raises
        TransactionManagementError.
        """
        for wrapper in self._wrappers:
            is_ours = wrapper.alias == atomic and not wrapper.savepoint_ids
            if wrapper.connection is not None and is_in_transaction(wrapper) and not is_ours:
                raise TransactionManagementError(
                    f"The task left a transaction open on the database {wrapper.alias!r}; it was rolled back."
                )

    def refused(self, causes: Iterable[BaseException]) -> str | None:
        """Return the database that refused the body a connection, if that is among the causes of its error."""
        if self._refused is None:
            return None
        alias, error = self._refused
        return alias if any(cause is error for cause in causes) else None

    def note_refused(self, database: str, error: BaseException) -> None:
        """Note an error because of which a body got no connection, until the next reset()."""
        self._refused = (database, error)

    def close(self) -> None:
        """Close all connections, in any state. End a copy of the process, as reset() does."""
        self._close_all()
        self._watch_all()

    def _close_all(self) -> None:
        leave_if_forked(self.process)
        for wrapper in connections.all(initialized_only=True):
            self._forget(wrapper)
        for idle in self.kept.values():
            quietly(idle.close)
        self.kept.clear()
        self._driver_settings.clear()

    def _forget(self, wrapper: BaseDatabaseWrapper) -> None:
        discard_connection(wrapper)
        del connections[wrapper.alias]

    # --- from other threads

    def cancel(self) -> None:
        """Cancel on the server what the thread waits for."""
        for wrapper in self._wrappers:
            names = ("cancel_safe", "cancel", "interrupt")  # psycopg 3.2 and later, others, sqlite3
            cancel = next((method for name in names if (method := getattr(wrapper.connection, name, None))), None)
            if cancel is not None:
                # In a thread of its own: an unreachable server must not block the caller.
                threading.Thread(target=quietly, args=(cancel,), name="cancel", daemon=True).start()

    def cut(self) -> None:
        """Shut down the sockets of the thread's connections, so that it can write no more."""
        for wrapper in self._wrappers:
            if (raw := wrapper.connection) is not None:
                quietly(partial(shutdown_socket, raw))


class _Current(threading.local):
    connections: TaskConnections | None = None


_current = _Current()


def reset(*, has_run_code: bool) -> None:
    """
    Reset this thread's connections before a body. The executor's own threads have none of this kind.

    has_run_code: code of the site has run since the last reset(). If not, only a connection that was kept can be dead.
    """
    current = _current.connections
    if current is not None and (has_run_code or current.kept):
        current.reset()


def note_refused(database: str, error: BaseException) -> None:
    """Note that a body of this thread, which ran in another process, got no connection."""
    if (current := _current.connections) is not None:
        current.note_refused(database, error)


def locals_of_this_thread() -> Mapping[str, object] | None:
    """
    Return Django's wrappers of this thread, and of coroutines that have run in it. None: unknown.

    Django's all() takes 4 us for one wrapper, most of it in asgiref's locals.
    """
    storage = getattr(getattr(connections, "_connections", None), "_storage", None)
    return vars(storage) if isinstance(storage, threading.local) else None


def driver_settings(raw: Any) -> tuple[Any, ...]:
    """Return the settings that psycopg keeps for all users of a connection. DISCARD ALL does not reset them."""
    return raw.isolation_level, raw.read_only, raw.deferrable, raw.row_factory, raw.cursor_factory


def is_in_transaction(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction is open, through Django or directly on the driver's connection."""
    raw = wrapper.connection
    if wrapper.vendor == "postgresql":
        return wrapper.in_atomic_block or raw.info.transaction_status in OPEN
    return wrapper.in_atomic_block or bool(getattr(raw, "in_transaction", False))


def is_as_new(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is as Django opens it: autocommit, idle, without unread data."""
    raw = wrapper.connection
    return (
        not wrapper.in_atomic_block
        and wrapper.autocommit
        and raw.autocommit
        and raw.info.transaction_status == TransactionStatus.IDLE
        and raw.fileno() > LAST_STANDARD_STREAM  # otherwise the body closed a stream before it connected
        and not has_unread_input(raw)
    )


def has_unread_input(raw: Any) -> bool:
    """Return whether the server sent something unasked: most likely that it closed the connection."""
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
