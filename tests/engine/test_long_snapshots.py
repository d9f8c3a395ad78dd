"""A report that reads for an hour keeps every row that was, while tasks come and go."""

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.records import Status
from tests.acceptance.harness import wait_until
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.engine.test_idle import Pages

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def report() -> Iterator[BaseDatabaseWrapper]:
    """A session with a snapshot of its own, which does not end."""
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM jobqueue_task")
    yield other
    other.close()


@pytest.fixture
def clean(transactional_db: None) -> Iterator[None]:
    """Without what earlier tests have deleted, which claims step over too, and without another's snapshot."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_task CASCADE")
        cursor.execute("ALTER TABLE jobqueue_task SET (autovacuum_enabled = off)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobqueue_task RESET (autovacuum_enabled)")


def close(report: BaseDatabaseWrapper) -> None:
    """Let it end, and its session: the server takes a moment."""
    pid = report.connection.info.backend_pid
    report.close()
    wait_until(lambda: not is_there(pid), "the end of the report's session")


def is_there(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone() is not None


def churn(bench: Bench, tasks: int) -> None:
    for _ in range(tasks // 100):
        bench.engine.enqueue([new() for _ in range(100)])
        assert len(bench.commit(*map(outcome, bench.claim(100))).done) == 100


def pages_of_a_claim(bench: Bench) -> int:
    bench.engine.enqueue([new()])
    pages = Pages()
    with transaction.atomic(), connection.execute_wrapper(pages):
        (claimed,) = bench.claim(1)
    assert bench.commit(outcome(claimed)).done == {claimed.id: Status.SUCCESSFUL}
    return max(pages.read.values())


def test_claims_pass_over_what_a_report_keeps_and_recover_when_it_ends(
    clean: None, report: BaseDatabaseWrapper
) -> None:
    bench = make_bench("postgresql")
    before = pages_of_a_claim(bench)
    churn(bench, 2000)
    beside = pages_of_a_claim(bench)
    close(report)
    churn(bench, 200)

    # 15, 109, 43 pages were seen.
    assert beside < before + 2000 / 10
    assert pages_of_a_claim(bench) < beside / 2 + before
