"""Databases with a default isolation level stricter than READ COMMITTED."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.db import connection

from jobqueue.models import Task
from tests.acceptance.harness import Fleet
from tools.postgres import throwaway_cluster
from verification.faults.burst import run_burst
from verification.faults.conformance import create_database, run_conformance
from verification.faults.pgbouncer import PROGRAM, run_pooler

pytestmark = pytest.mark.django_db(transaction=True)
LEVELS = ["repeatable read", "serializable"]


@pytest.fixture
def isolation(transactional_db: None) -> Iterator[Callable[[str], None]]:
    """Change the default isolation level of the test database for new sessions."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])

    def alter(change: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} {change}")
        connection.close()

    yield lambda level: alter(f"SET default_transaction_isolation = '{level}'")
    alter("RESET default_transaction_isolation")


def test_conformance_suite_holds_behind_a_strict_pooler() -> None:
    """
    In PostgreSQL, SERIALIZABLE raises all errors that REPEATABLE READ does, and more.

    If PgBouncer is installed, it stands between, and gives each transaction another session.
    """
    with ExitStack() as stack:
        strict = {"default_transaction_isolation": "serializable"}
        cluster = stack.enter_context(throwaway_cluster(fsync="off", full_page_writes="off", **strict))
        create_database(cluster.url, "jobqueue")
        url_for = cluster.url_for
        if PROGRAM is not None:
            pooler = run_pooler(cluster.database(), mode="transaction", sessions=5)
            url_for = stack.enter_context(pooler).url_for
        assert " passed" in run_conformance(url_for("jobqueue"))


@pytest.mark.parametrize("level", LEVELS)
def test_executors_work_at_the_level(
    isolation: Callable[[str], None], fleet: Fleet, process_environment: dict[str, str], level: str
) -> None:
    isolation(level)
    with connection.cursor() as cursor:
        cursor.execute("SHOW default_transaction_isolation")
        assert cursor.fetchone() == (level,)

    run_burst(fleet, process_environment["DATABASE_URL"])

    # After a serialization failure, an atomic body ran again without using an attempt.
    assert not Task.objects.exclude(errors=[]).exists()
