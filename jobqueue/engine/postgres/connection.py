"""PostgreSQL for the engine: statements from files, transactions, formats of values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import Any, cast
from uuid import UUID
from weakref import WeakSet

import msgspec
from django.conf import settings
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import Cursor as ClientBindingCursor
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.models import BooleanField, Expression, F, Func, Value
from psycopg import Connection, Cursor, IsolationLevel
from psycopg.pq import Format

from jobqueue.engine.database import Database, LockTimeout
from jobqueue.engine.timeouts import LOCK_WAIT, LOCKED, is_slow, sqlstate_of
from jobqueue.models import ISOLATION_LOSSES
from jobqueue.values.history import HISTORY_CHARACTERS
from jobqueue.values.states import Status

CHANNEL = "jobqueue"
KEPT_CURSOR = "_jobqueue_cursor"  # attribute of Django's connections
STATUSES = {status.value: status for status in Status}  # calling Status takes a microsecond

# Settings with which a statement fails, by the SQLSTATE of its error.
SETTINGS = {
    "42501": ("role", "row_security"),  # no privilege
    "42P01": ("search_path",),  # no such table
    "42883": ("search_path",),  # no such function
    "25006": ("transaction_read_only", "default_transaction_read_only"),
    "57014": ("statement_timeout",),
    "55P03": ("lock_timeout",),
}

_read_committed: WeakSet[Connection] = WeakSet()  # sessions with this default isolation
_pooled: WeakSet[Connection] = WeakSet()  # connections of executors behind a pooler: settings last for a transaction


@cache
def statement(name: str) -> str:
    """
    Read a statement from its file, without comments (a percent sign would count as a parameter) and indentation.

    {name} stands for the statement of another file, {isolation_losses} and {history_characters} for the numbers.
    """
    text = (files("jobqueue.engine.postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    sql = "\n".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("--"))
    sql = sql.replace("{isolation_losses}", str(ISOLATION_LOSSES))
    sql = sql.replace("{history_characters}", str(HISTORY_CHARACTERS))
    return re.sub(r"\{(\w+)\}", lambda match: statement(match[1]), sql)


@cache
def short_statement(name: str) -> str:
    """
    Return a statement without the spaces that SQL does not need.

    psycopg parses statements of more than 4,096 characters at every execution: 10 us for commit.sql.
    """
    parts = re.split(r"('[^']*')", statement(name))  # every second one is a text, which stays as it is
    parts[::2] = (re.sub(r" *([,=]) +", r"\1", part) for part in parts[::2])
    return "".join(parts)


def configure_session(
    connection: Connection, limit_seconds: float, *, prepares: bool = True, is_pooled: bool = False
) -> bool:
    """
    Set up an executor's session. Return False behind a pooler, because others may share the session.

    A statement waits at most LOCK_WAIT for a lock. Behind a pooler, this holds for statements in transactions.
    limit_seconds: the timeout of each statement, instead of the role's timeout. is_pooled: the pooler is known.
    prepares: whether the session prepares statements. Then the client binds the ORM's parameters, even with
    OPTIONS["server_side_binding"]: with a generic plan, `status = $1` cannot use a partial index.
    """
    ((pid, isolation),) = connection.execute(statement("identify_session")).fetchall()
    if is_pooled or pid != connection.info.backend_pid:
        _pooled.add(connection)
        return False
    limits = {"limit": f"{limit_seconds * 1000:.0f}ms", "lock_wait": LOCK_WAIT}
    connection.execute(statement("set_session_timeouts"), limits)
    if prepares:
        connection.execute(statement("generic_plans"))
        if issubclass(connection.cursor_factory, ServerBindingCursor):
            connection.cursor_factory = cast(type[Cursor], ClientBindingCursor)
    if isolation == "read committed":
        _read_committed.add(connection)
    return True


def as_json(values: Sequence[msgspec.Struct]) -> str:
    """Write structs as a JSON list, for json_to_recordset()."""
    return msgspec.json.encode(values).decode()


def as_array(values: Iterable[UUID | float | str]) -> str:
    """Write ids, numbers or pools as an array of PostgreSQL. psycopg's own way took a sixth of an actor's commit."""
    return f"{{{','.join(map(str, values))}}}"


def as_values(values: Sequence[UUID | float]) -> str:
    """Write ids or numbers as an array in half the time of as_array()."""
    return f"{{{msgspec.json.encode(values).decode()[1:-1]}}}"


def as_json_array(texts: Iterable[str | None]) -> str:
    """Write JSON texts as an array of texts."""
    quoted = (
        "NULL" if text is None else f'"{text}"'
        for text in (t and t.replace("\\", "\\\\").replace('"', '\\"') for t in texts)
    )
    return f"{{{','.join(quoted)}}}"


@lru_cache
def as_text_array(texts: tuple[str, ...]) -> str:
    """Write any texts as an array of PostgreSQL. The claims of an executor name the same queues again and again."""
    return as_array('"' + re.sub(r'(["\\])', r"\\\1", text) + '"' for text in texts)


def notify_from_elsewhere(database: str, payload: str) -> None:
    """
    Send a notification on a new connection.

    A session gets its own notifications even through a pooler that does not pass on those of other sessions.
    """
    wrapper = unpooled(database)
    try:
        notify_on(wrapper, payload)
    finally:
        wrapper.close()


def unpooled(database: str) -> BaseDatabaseWrapper:
    """Return a connection of its own, which is not opened yet. The caller closes it."""
    wrapper = connections[database].copy()
    wrapper.settings_dict["OPTIONS"].pop("pool", None)
    return wrapper


def notify_on(wrapper: BaseDatabaseWrapper, payload: str) -> None:
    """Send a notification on this connection."""
    with wrapper.cursor() as cursor:
        cursor.execute(statement("notify"), {"channel": CHANNEL, "payload": payload, "is_alone": True})


class OneOf(Func):
    """
    Whether an id is in an array of unknown length for the planner, which may read the whole table for 2,000 ids.
    """

    arity = 2
    arg_joiner = " = ANY(ARRAY(SELECT UNNEST("
    template = "%(expressions)s::uuid[])))"
    output_field = BooleanField()


class PostgresDatabase(Database):
    """Runs statements from files on PostgreSQL 14 and later."""

    @cached_property
    def common(self) -> dict[str, Any]:
        return {"backend": self.backend, "aging": float(self.options.aging)}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Open a READ COMMITTED transaction, or a savepoint in the caller's.

        REPEATABLE READ has one snapshot for the whole transaction: it would not see changes from before a lock.
        """
        if self.has_caller():
            with super().transaction():
                yield
            return
        connection = connections[self.using]
        raw = connection.connection
        with connection.wrap_database_errors:  # the watchdog may have closed the connection
            site_default, raw.isolation_level = raw.isolation_level, IsolationLevel.READ_COMMITTED
        try:
            with super().transaction():
                if raw in _pooled:
                    self.query("lock_timeout", wait=LOCK_WAIT)
                yield
        finally:
            if not raw.closed:
                with connection.wrap_database_errors:
                    raw.isolation_level = site_default

    @contextmanager
    def lock_timeout(self, wait: str) -> Iterator[None]:
        ((before,),) = self.query("lock_timeout", wait=wait)
        try:
            yield
        except OperationalError as error:
            if sqlstate_of(error) == LOCKED:
                raise LockTimeout(*error.args) from error.__cause__
            raise
        self.query("lock_timeout", wait=before)  # for the rest of a caller's transaction

    def settings_in_the_way(self, sqlstate: str) -> list[str]:
        if (names := SETTINGS.get(sqlstate)) is None:
            return []
        try:
            return [name for (name,) in self.query("changed_settings", names=list(names))]
        except OperationalError as error:
            if not is_slow(error):
                raise
            return ["statement_timeout"]  # it is too short even for this

    def has_caller(self) -> bool:
        """Return whether a caller's transaction is open. Its isolation is the caller's choice."""
        connection = connections[self.using]
        return connection.in_atomic_block or not connection.get_autocommit()

    def read_committed(self) -> AbstractContextManager[None]:
        """Run one statement READ COMMITTED: after waiting for another insert, it must see that."""
        return nullcontext() if self.has_caller() else self.transaction()

    def is_autocommit_safe(self) -> bool:
        """Return whether a statement without a transaction around it runs in one of its own, READ COMMITTED."""
        return connections[self.using].connection in _read_committed and not self.has_caller()

    # Every statement may use %(backend)s, and %(aging)s: the seconds per point of priority.

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run the statement of a file and fetch all its rows."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement(name), self.common | parameters)
            return cursor.fetchall() if cursor.description else []

    def query_prepared(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """
        Run a frequent statement: the server binds its parameters and answers in binary.

        It is prepared if the connection has a prepare_threshold, because planning takes up to 1.5 ms.
        """
        return self.fetch_prepared(short_statement(name), **parameters)

    def execute_prepared(self, name: str, /, **parameters: Any) -> None:
        with self._prepared_cursor() as cursor:
            cursor.execute(short_statement(name), self.common | parameters)

    def fetch_prepared(self, text: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        with self._prepared_cursor() as cursor:
            return self._fetch(cursor, text, parameters)

    def fetch_small(self, text: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """
        Run a statement with small parameters and a small answer, as fetch_prepared() does.

        The connection keeps the cursor for the next such statement, and with it these values. psycopg makes a cursor
        in a third of the time in which it runs a statement.
        """
        cursor = self._prepared_cursor(is_kept=True)
        rows = self._fetch(cursor, text, parameters)
        vars(cursor.db)[KEPT_CURSOR] = cursor.cursor
        return rows

    def _fetch(self, cursor: Any, text: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        cursor.execute(text, self.common | parameters)
        with cursor.db.wrap_database_errors:  # Django's own fetchall() makes a function for each call
            rows: list[tuple[Any, ...]] = cursor.cursor.fetchall()
        return rows

    def _prepared_cursor(self, *, is_kept: bool = False) -> Any:
        connection = connections[self.using]
        connection.ensure_connection()
        attributes = vars(connection)
        if "cursor" in attributes:  # Django's tests replace it where a test may not use the database
            connection.cursor().close()
        # Taken out while it is used: code that runs within a statement may enqueue, too.
        inner: Any = attributes.pop(KEPT_CURSOR, None) if is_kept else None
        if inner is None or inner.connection is not connection.connection:
            inner = Cursor(connection.connection)
        # Only Django's loaders of text know naive times.
        inner.format = Format.BINARY if settings.USE_TZ else Format.TEXT
        return connection.make_debug_cursor(inner) if connection.queries_logged else connection.make_cursor(inner)

    def execute(self, name: str, /, **parameters: Any) -> int:
        """Run the statement of a file and count the rows it changed."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement(name), self.common | parameters)
            return int(cursor.rowcount)

    def is_one_of(self, column: str, ids: Iterable[UUID]) -> Expression:
        return OneOf(F(column), Value(list(ids)))
