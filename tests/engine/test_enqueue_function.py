"""The functions that insert tasks: they call no operators of other roles."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from jobqueue.models import Task
from jobqueue.values.records import AlikeTasks
from tests.engine.bench import Bench, new
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db


@pytest.fixture
def bench() -> Bench:
    return make_bench("postgresql")


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


def test_create_task_calls_no_operators_of_other_roles(bench: Bench) -> None:
    """PostgreSQL prefers an operator of the search path if its types match exactly."""
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
    assert bench.engine.enqueues.enqueue([row])[0].created
    assert bench.engine.enqueues.enqueue([new(priority=3)])[0].created


@pytest.mark.parametrize(("count", "left_out"), [(1, "1 of 1"), (3, "1 of 3")])
def test_task_that_a_trigger_leaves_out_is_an_error(bench: Bench, count: int, left_out: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
            "CREATE TRIGGER leave_out BEFORE INSERT ON jobqueue_task FOR EACH ROW WHEN (NEW.args = '[0]')"
            " EXECUTE FUNCTION leave_out()"
        )
    rows = AlikeTasks(new(args=f"[{number}]") for number in range(count))

    with pytest.raises(DatabaseError, match=f"left out {left_out} new tasks"), transaction.atomic():
        bench.engine.enqueues.enqueue(rows)

    assert not Task.objects.exists()
