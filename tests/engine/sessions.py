"""Other sessions on the server, for tests of locks and races."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.records import Status

Result = TypeVar("Result")
DEADLINE_SECONDS = 120.0  # far beyond what anything here takes, on a busy machine too


class Session:
    """A connection of its own, in a transaction until it is told to end."""

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self._wrapper = wrapper

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._wrapper.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def lock(self, *ids: UUID, strength: str = "NO KEY UPDATE") -> None:
        self.run(f"SELECT id FROM jobqueue_task WHERE id = ANY(%s) FOR {strength}", list(ids))

    def write_to(self, task_id: UUID, body: str = "1") -> None:
        """What a sender does: insert a message, share-locking the receiver."""
        self.run(
            "INSERT INTO jobqueue_inboxmessage (task_id, body, sent_at) SELECT id, %s, now() FROM jobqueue_task"
            " WHERE id = %s FOR KEY SHARE",
            body,
            task_id,
        )

    def set_status(self, task_id: UUID, status: Status) -> None:
        self.run("UPDATE jobqueue_task SET status = %s WHERE id = %s", status, task_id)

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
    """Give a function that starts calls in threads, each of which closes its connections at its end."""

    def closing(call: Callable[..., Result], *args: Any) -> Result:
        try:
            return call(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        yield lambda call, *args: pool.submit(closing, call, *args)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS} s"


def wait_until_somebody_waits() -> None:
    """Until one session of this database waits for another's lock."""
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() LIMIT 1"
    with session(autocommit=True) as observer:
        wait_until(lambda: observer.run(query), "a session waits for a lock")
