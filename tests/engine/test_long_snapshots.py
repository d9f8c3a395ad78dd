"""A transaction that reads for an hour prevents the removal of dead rows."""

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.engine.test_idle import Pages
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def report() -> Iterator[BaseDatabaseWrapper]:
    """Open a session and keep its snapshot."""
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM jobqueue_task")
    yield other
    other.close()


@pytest.fixture
def clean(transactional_db: None) -> Iterator[None]:
    """Remove the dead rows of earlier tests, which claims would read, and stop autovacuum."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_task CASCADE")
        cursor.execute("ALTER TABLE jobqueue_task SET (autovacuum_enabled = off)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobqueue_task RESET (autovacuum_enabled)")


def close(report: BaseDatabaseWrapper) -> None:
    """Close the session and wait until the server has ended it."""
    pid = report.connection.info.backend_pid
    report.close()
    wait_until(lambda: not is_there(pid), "the end of the report's session")


def is_there(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone() is not None


def churn(bench: Bench, tasks: int) -> None:
    for _ in range(tasks // 100):
        bench.engine.enqueues.enqueue([new() for _ in range(100)])
        assert len(bench.commit(*map(outcome, bench.claim(100))).done) == 100


def pages_of_a_claim(bench: Bench) -> int:
    bench.engine.enqueues.enqueue([new()])
    pages = Pages()
    with transaction.atomic(), connection.execute_wrapper(pages):
        (claimed,) = bench.claim(1)
    assert bench.commit(outcome(claimed)).done == {claimed.id: Status.SUCCESSFUL}
    return max(pages.read.values())


def test_claims_stay_fast_beside_long_snapshot_and_recover_after(clean: None, report: BaseDatabaseWrapper) -> None:
    bench = make_bench("postgresql")
    before = pages_of_a_claim(bench)
    churn(bench, 2000)
    beside = pages_of_a_claim(bench)
    close(report)
    churn(bench, 200)

    # Measured: 15 pages before, 109 beside the report, 43 after it.
    assert beside < before + 2000 / 10
    assert pages_of_a_claim(bench) < beside / 2 + before
