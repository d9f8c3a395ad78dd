"""Every change of state of every task, as the database itself saw it, and what must hold of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection

from tests.acceptance.harness import ENDED

CREATE = """
    CREATE TABLE tests_history (
        id bigserial PRIMARY KEY, task_id uuid, before text, after text, claim_number bigint, lost_count int,
        executor_id uuid, at timestamptz DEFAULT clock_timestamp()
    );
    CREATE FUNCTION tests_note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO tests_history (task_id, before, after, claim_number, lost_count, executor_id)
        VALUES (NEW.id, OLD.status, NEW.status, NEW.claim_number, NEW.lost_count, NEW.executor_id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER tests_note AFTER UPDATE ON jobqueue_task FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION tests_note();
"""
DROP = "DROP TRIGGER tests_note ON jobqueue_task; DROP FUNCTION tests_note; DROP TABLE tests_history"


@dataclass(frozen=True, slots=True)
class Change:
    task_id: UUID
    before: str
    after: str
    claim_number: int
    lost_count: int
    executor_id: UUID | None
    at: datetime


@contextmanager
def recorded() -> Iterator[None]:
    """Note every change while the block runs."""
    with connection.cursor() as cursor:
        cursor.execute(CREATE)
    try:
        yield
    finally:
        with connection.cursor() as cursor:  # the server may have been another meanwhile
            cursor.execute(DROP)


def changes() -> dict[UUID, list[Change]]:
    """Give the changes of each task, oldest first."""
    found: dict[UUID, list[Change]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT task_id, before, after, claim_number, lost_count, executor_id, at FROM tests_history ORDER BY id"
        )
        for row in cursor.fetchall():
            found[row[0]].append(Change(*row))
    return found


def assert_sound() -> None:
    """Each task was claimed from READY with a number of its own, and ended once, in the hands that held it."""
    for task_id, story in changes().items():
        claims = [change.claim_number for change in story if change.after == "RUNNING"]
        assert claims == list(range(1, len(claims) + 1)), task_id
        assert sum(change.after in ENDED for change in story) == 1, task_id
        assert all(change.before == "READY" for change in story if change.after == "RUNNING"), task_id
        assert story[-1].after in ENDED, task_id
