"""Other sessions on the server, for tests of locks and races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.migrations.executor import MigrationExecutor

from jobqueue.values.states import Status
from tests.waiting import DEADLINE_SECONDS, wait_until

Result = TypeVar("Result")


class Session:
    """A separate connection, in a transaction until the test commits or rolls back."""

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self._wrapper = wrapper

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._wrapper.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def lock(self, *ids: UUID, strength: str = "NO KEY UPDATE") -> None:
        self.run(f"SELECT id FROM jobqueue_task WHERE id = ANY(%s) FOR {strength}", list(ids))

    def write_to(self, task_id: UUID, body: str = "1") -> None:
        """Insert a message as a sender does, which locks the receiver FOR KEY SHARE."""
        self.run(
            "INSERT INTO jobqueue_inboxmessage (task_id, body, sent_at) SELECT id, %s, now() FROM jobqueue_task"
            " WHERE id = %s FOR KEY SHARE",
            body,
            task_id,
        )

    def set_status(self, task_id: UUID, status: Status) -> None:
        self.run("UPDATE jobqueue_task SET status = %s WHERE id = %s", status, task_id)

    def notifications(self, count: int) -> list[str]:
        """Wait for `count` notifications. Return them and those that follow within 0.3 s."""
        raw = self._wrapper.connection
        first = raw.notifies(timeout=DEADLINE_SECONDS, stop_after=count) if count else ()
        return [notification.payload for notification in (*first, *raw.notifies(timeout=0.3))]

    def commit(self) -> None:
        self._wrapper.commit()

    def rollback(self) -> None:
        self._wrapper.rollback()


@contextmanager
def session(*, autocommit: bool = False) -> Iterator[Session]:
    wrapper = connections["default"].copy()
    wrapper.connect()
    wrapper.set_autocommit(autocommit)
    try:
        yield Session(wrapper)
    finally:
        if not autocommit:
            wrapper.rollback()
        wrapper.close()


@contextmanager
def threads(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that starts calls in threads. Each thread closes its connections."""

    def closing(call: Callable[..., Result], *args: Any) -> Result:
        try:
            return call(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        yield lambda call, *args: pool.submit(closing, call, *args)


@contextmanager
def separate_schema(name: str, *tables: str) -> Iterator[CursorWrapper]:
    """Create empty tables in a schema of their own, without autovacuum and with fresh statistics."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {name}")
        cursor.execute(f"SET search_path = {name}")
        try:
            migrations = MigrationExecutor(connection)
            migrations.migrate([node for node in migrations.loader.graph.leaf_nodes() if node[0] == "jobqueue"])
            for table in tables:
                cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            cursor.execute("ANALYZE")
            yield cursor
        finally:
            cursor.execute("RESET search_path")
            cursor.execute(f"DROP SCHEMA {name} CASCADE")


def wait_until_blocked() -> None:
    """Wait until one session of this database waits for a lock of another."""
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() LIMIT 1"
    with session(autocommit=True) as observer:
        wait_until(lambda: observer.run(query), "a session waits for a lock")
