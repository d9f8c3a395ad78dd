"""A commit writes the large values that it changes, and no others: PostgreSQL stores these outside of the row."""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, outcome
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db

LINE = "2020-01-01T00:00:00Z requeued\n"


@pytest.fixture
def bench() -> Bench:
    return make_bench("postgresql")


def large(number: int = 1) -> str:
    return random.Random(number).randbytes(6000).hex()


def chunks() -> dict[int, int]:
    """Return the ids of the values that are stored outside of their rows, with their number of parts."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'jobqueue_task'::regclass")
        (table,) = cursor.fetchone()
        cursor.execute(f"SELECT chunk_id, count(*) FROM {table} GROUP BY chunk_id")
        return dict(cursor.fetchall())


def with_large_values(bench: Bench) -> UUID:
    pk = bench.add()
    bench.set(
        pk,
        errors=[{"traceback": large(number)} for number in range(20)],
        worker_ids=[large()],
        history=large(),
        inner_state=large(),
        metadata={"text": large()},
    )
    return pk


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (Status.SUSPENDED, {"has_succeeded": True}),
        (Status.READY, {}),
        (Status.SUCCESSFUL, {"has_succeeded": True, "return_value": "1"}),
    ],
)
def test_commit_without_an_error_leaves_large_values(bench: Bench, status: Status, changes: dict[str, Any]) -> None:
    pk = with_large_values(bench)
    (claimed,) = bench.claim()
    before = chunks()
    assert len(before) >= 5

    assert bench.commit(outcome(claimed, status, **changes)).done == {pk: status}

    assert chunks().keys() == before.keys()


def test_commit_appends_to_large_values_and_drops_the_oldest(bench: Bench) -> None:
    pk = with_large_values(bench)
    (claimed,) = bench.claim()

    bench.commit(outcome(claimed, Status.FAILED, attempts=1, error=ERROR, worker_id="w", history=LINE))

    row = bench.row(pk)
    assert [len(row.errors), row.errors[0]["traceback"], row.errors[-1]] == [20, large(1), json.loads(ERROR)]
    assert row.worker_ids == [large(), "w"]
    assert row.history is not None
    assert row.history.endswith(LINE)
