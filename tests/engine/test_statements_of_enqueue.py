"""One task by its own statement, for young connections, and by the server's function: nobody can tell which."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.engine.postgres import enqueue
from jobqueue.models import CounterDelta, Task
from jobqueue.serialization.ids import new_id
from tests.engine.bench import Bench, new
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db

NOW_AND_OWN = {"id", "rank", "enqueued_at", "wake_at", "expires_at"}  # compared as distances from enqueued_at


@pytest.fixture
def bench() -> Bench:
    return make_bench("postgresql")


def columns(bench: Bench, **values: Any) -> dict[str, Any]:
    row = new(**values)
    (answer,) = bench.engine.enqueue([row])
    stored: dict[str, Any] = dict(Task.objects.filter(pk=row.id).values().get())
    assert (answer.id, answer.enqueued_at, answer.status) == (row.id, stored["enqueued_at"], stored["status"])
    given = {"wake_at", "expires_at"} & values.keys()
    distances = {
        name: stored[name] and stored[name] - stored["enqueued_at"]
        for name in NOW_AND_OWN - {"id", "enqueued_at"} - given
    }
    return {name: value for name, value in stored.items() if name not in NOW_AND_OWN - given} | distances


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "queue_name": "mail ✉",
            "priority": -7,
            "args": '[1, "a\\n\\"ü"]',
            "kwargs": '{"b": [null, 1.5e300]}',
            "options": '{"timeout": 5}',
            "metadata": '{"m": true}',
            "max_attempts": 7,
            "idempotency_key": "k",
            "idempotency_digest": "d",
        },
        {"wake_after_seconds": 3.25, "expires_after_seconds": 7.5},
        {"wake_after_seconds": -1.0},
        {"wake_at": datetime(2100, 1, 2, 3, 4, 5, 678901, UTC), "expires_at": datetime(2101, 1, 1, tzinfo=UTC)},
        {"wake_at": datetime(1999, 1, 1, tzinfo=UTC), "parent_id": new_id()},
    ],
    ids=["defaults", "values", "later", "before", "at", "child"],
)
def test_both_make_the_same_row(bench: Bench, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]) -> None:
    CounterDelta.objects.all().delete()  # of tests that commit
    monkeypatch.setattr(enqueue, "YOUNG", 10**9)
    by_statement = columns(bench, **values)
    Task.objects.all().delete()
    monkeypatch.setattr(enqueue, "YOUNG", -1)
    by_function = columns(bench, **values)

    assert by_statement == by_function
    counted = CounterDelta.objects.values_list("backend", "queue_name", "task_type", "submitted")
    assert len(counted) == 2
    assert len(set(counted)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_connection_s_first_tasks_are_inserted_by_the_statement_that_is_planned_sooner(bench: Bench) -> None:
    connection.close()  # the next has asked for nothing yet
    with CaptureQueriesContext(connection) as queries:
        for _ in range(enqueue.YOUNG + 2):
            bench.engine.enqueue([new()])

    by_function = ["jobqueue_enqueue(" in query["sql"] for query in queries]
    assert by_function == [False] * enqueue.YOUNG + [True] * 2


TYPES = [
    "smallint",
    "int",
    "bigint",
    "float8",
    "numeric",
    "text",
    "varchar",
    "uuid",
    "timestamptz",
    "interval",
    "jsonb",
]
OPERATORS = ["+", "-", "*", "/", "<", "<=", "=", ">=", ">", "||"]


@pytest.mark.parametrize("young", [10**9, -1], ids=["statement", "function"])
def test_operators_of_other_roles_are_not_called(bench: Bench, monkeypatch: pytest.MonkeyPatch, young: int) -> None:
    """PostgreSQL prefers them, in any schema of the path, where it has none of its own for exactly these types."""
    monkeypatch.setattr(enqueue, "YOUNG", young)
    with connection.cursor() as cursor:
        for left in TYPES:
            for right in TYPES:
                name = f"trap_{left}_{right}"
                cursor.execute(
                    f"CREATE FUNCTION {name}({left}, {right}) RETURNS {left} LANGUAGE plpgsql"
                    f" AS $$ BEGIN RAISE '% was called', '{name}'; END $$"
                )
                for operator in OPERATORS:
                    cursor.execute(
                        f"CREATE OPERATOR public.{operator} (FUNCTION = {name}, LEFTARG = {left}, RIGHTARG = {right})"
                    )
        with pytest.raises(DatabaseError, match="was called"), transaction.atomic():
            cursor.execute("SELECT 2::int * 2::float8")

    row = new(priority=3, wake_after_seconds=5.0, expires_after_seconds=7.0, idempotency_key="k")
    assert bench.engine.enqueue([row])[0].created
