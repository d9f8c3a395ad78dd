"""The connection of one of the executor's own threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from django.db import connection, transaction

from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.executor.database.connection import PREPARE_AT, GuardedConnection
from jobqueue.records import Status
from tests.engine.bench import outcome
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh_connection() -> Iterator[None]:
    connection.close()
    connection.ensure_connection()
    yield
    connection.close()


def asked(line: GuardedConnection) -> tuple[object, int | None]:
    with line, connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        return cursor.fetchone()[0], connection.connection.prepare_threshold


def test_statements_are_prepared_and_planned_once() -> None:
    assert asked(GuardedConnection("loop", "default", 10.0, prepares=True)) == ("force_generic_plan", PREPARE_AT)


def test_a_line_that_is_not_to_prepare_leaves_its_connection_alone() -> None:
    assert asked(GuardedConnection("heartbeat", "default", 10.0)) == ("auto", None)


def test_behind_a_pooler_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that a pooler sent at login belongs to another session."""
    monkeypatch.setattr(
        "jobqueue.engine.postgres.connection.statement", lambda name: {"identify_session": "SELECT 0, ''"}[name]
    )

    assert asked(GuardedConnection("loop", "default", 10.0, prepares=True)) == ("auto", None)


@pytest.mark.parametrize(("level", "transactions"), [("read committed", 0), ("repeatable read", 2)])
def test_claim_and_plain_commit_need_no_transaction_in_autocommit(
    monkeypatch: pytest.MonkeyPatch, level: str, transactions: int
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{level}'")
    bench, begin = make_bench("postgresql"), PostgresDatabase.transaction
    pk, begun = bench.add(), []

    def count(db: PostgresDatabase) -> AbstractContextManager[None]:
        begun.append(db)
        return begin(db)

    monkeypatch.setattr(PostgresDatabase, "transaction", count)
    with GuardedConnection("loop", "default", 10.0, prepares=True):
        (claimed,) = bench.claim()
        assert bench.commit(outcome(claimed)).done == {pk: Status.SUCCESSFUL}

    assert len(begun) == transactions
    connection.close()
    assert bench.status(pk) == "SUCCESSFUL"


def test_claim_in_a_callers_transaction_is_undone_with_it() -> None:
    bench = make_bench("postgresql")
    pk = bench.add()
    with GuardedConnection("loop", "default", 10.0, prepares=True), transaction.atomic():
        assert bench.claim_ids() == [pk]
        transaction.set_rollback(True)

    assert bench.status(pk) == "READY"
