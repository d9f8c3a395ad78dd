"""The server's side of the engine: statements from files, its transactions, and how values are written for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID
from weakref import WeakSet

import msgspec
from django.conf import settings
from django.db import connections, transaction
from django.db.models import BooleanField, F, Func, Value
from psycopg import Connection, Cursor, IsolationLevel
from psycopg.pq import Format

from jobqueue.engine.portable.database import Database
from jobqueue.models import TaskQuerySet

CHANNEL = "jobqueue"

_read_committed: WeakSet[Connection] = WeakSet()  # also where a statement has no transaction around it


@cache
def statement(name: str) -> str:
    """
    Read a statement from its file, without comments (a percent sign there would count as a parameter) and indentation.

    psycopg parses one of more than 4,096 characters anew each time that it is executed: 10 us for commit.sql.
    """
    text = (files("jobqueue.engine.postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("--"))


def configure_session(connection: Connection, limit_seconds: float) -> bool:
    """
    Set up an executor's session with the server; False behind a pooler, where others have a part in it.

    limit_seconds: the timeout of each statement, in place of that of the role.
    """
    ((pid, isolation),) = connection.execute(statement("identify_session")).fetchall()
    if pid != connection.info.backend_pid:
        return False
    connection.execute(statement("set_session_timeouts"), {"limit": f"{limit_seconds * 1000:.0f}ms"})
    connection.execute(statement("generic_plans"))
    if isolation == "read committed":
        _read_committed.add(connection)
    return True


def as_json(values: Sequence[msgspec.Struct]) -> str:
    """Write structs as a JSON list, for json_to_recordset()."""
    return msgspec.json.encode(values).decode()


def as_array(ids: Iterable[UUID | int]) -> str:
    """Write ids as PostgreSQL does: psycopg, which does it element by element, took a sixth of an actor's commit."""
    return f"{{{','.join(map(str, ids))}}}"


def notify_from_elsewhere(database: str, payload: str) -> None:
    """
    Send a notice on a connection of its own.

    What a session tells itself arrives with the answer, even through a pooler that passes on no notices of others.
    """
    wrapper = connections[database].copy()
    wrapper.settings_dict["OPTIONS"].pop("pool", None)
    try:
        with wrapper.cursor() as cursor:
            cursor.execute(statement("notify"), {"channel": CHANNEL, "payload": payload})
    finally:
        wrapper.close()


class OneOf(Func):
    """
    Whether an id is in an array whose length the planner cannot count.

    When it sees 2,000 ids it may prefer to read the whole table.
    """

    arity = 2
    arg_joiner = " = ANY(ARRAY(SELECT UNNEST("
    template = "%(expressions)s::uuid[])))"
    output_field = BooleanField()


class PostgresDatabase(Database):
    """Runs statements from files on PostgreSQL 14 and later."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Open a READ COMMITTED transaction, or a savepoint in the caller's.

        REPEATABLE READ has one snapshot for the whole transaction: reading after locking would see the past.
        """
        if self.has_caller():
            with transaction.atomic(using=self.using):
                yield
            return
        connection = connections[self.using]
        raw = connection.connection
        with connection.wrap_database_errors:  # the watchdog may have closed the connection
            site_default, raw.isolation_level = raw.isolation_level, IsolationLevel.READ_COMMITTED
        try:
            with transaction.atomic(using=self.using):
                yield
        finally:
            if not raw.closed:
                with connection.wrap_database_errors:
                    raw.isolation_level = site_default

    def has_caller(self) -> bool:
        """Whether a caller's transaction is open. Its isolation is the caller's choice."""
        connection = connections[self.using]
        return connection.in_atomic_block or not connection.get_autocommit()

    def read_committed(self) -> AbstractContextManager[None]:
        """Run one statement READ COMMITTED: it may wait for another insert, and must see it then."""
        return nullcontext() if self.has_caller() else self.transaction()

    def is_autocommit_safe(self) -> bool:
        """Whether a statement without a transaction around it runs in one of its own, READ COMMITTED."""
        return connections[self.using].connection in _read_committed and not self.has_caller()

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run the statement of a file and fetch all its rows."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement(name), parameters)
            return cursor.fetchall() if cursor.description else []

    def query_prepared(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """
        Run a frequent statement: the server binds its parameters and answers in binary.

        It is prepared if the connection has a prepare_threshold, because planning takes up to 1.5 ms.
        """
        with self._prepared_cursor() as cursor:
            cursor.execute(statement(name), parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _prepared_cursor(self) -> Any:
        connection = connections[self.using]
        connection.ensure_connection()
        inner: Any = Cursor(connection.connection)
        # Only Django's loaders of text know naive times.
        inner.format = Format.BINARY if settings.USE_TZ else Format.TEXT
        return connection.make_debug_cursor(inner) if connection.queries_logged else connection.make_cursor(inner)

    def execute(self, name: str, /, **parameters: Any) -> int:
        """Run the statement of a file and count the rows it changed."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement(name), parameters)
            return int(cursor.rowcount)

    def by_ids(self, ids: Iterable[UUID]) -> TaskQuerySet:
        return self.tasks.filter(OneOf(F("pk"), Value(list(ids))))
