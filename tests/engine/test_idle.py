"""What an executor without work reads beside a million suspended actors: a handful of pages per statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.engine.bench import Bench
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db

SLEEPERS = 1_000_000
MOST_PAGES = 40  # of one statement: each index of a million rows is three or four deep, and there are five queues

FILL = """
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, inner_state, status, wake_at,
    claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, 'default', 'queue-' || n %% 5, 'tests.noop', 0, now(), '[]', '{}', '{}', '{}', '{}',
    'SUSPENDED', CASE WHEN n %% 10 = 0 THEN now() + n * interval '1 hour' END, 1, '[]', 0, 4, 1, 0, '[]', now()
FROM generate_series(1, %s) AS n
"""


@pytest.fixture(scope="module")
def sleepers(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """In a schema of their own, with the statistics of an empty queue."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA idle")
        cursor.execute("SET search_path = idle")
        try:
            migrations = MigrationExecutor(connection)
            migrations.migrate([node for node in migrations.loader.graph.leaf_nodes() if node[0] == "jobqueue"])
            for table in ("jobqueue_inboxmessage", "jobqueue_task"):
                cursor.execute(f"ALTER TABLE {table} SET UNLOGGED, SET (autovacuum_enabled = off)")
            cursor.execute("ANALYZE jobqueue_task, jobqueue_inboxmessage")
            cursor.execute(FILL, [SLEEPERS])
            yield
        finally:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA idle CASCADE")


@pytest.fixture(scope="module", params=["empty", "fresh"])
def statistics(request: pytest.FixtureRequest, sleepers: None) -> None:
    if request.param == "fresh":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE jobqueue_task, jobqueue_inboxmessage")


@pytest.fixture
def bench(statistics: None, db: None) -> Bench:
    return make_bench("postgresql")


class Pages:
    """Counts the pages that each statement reads, by running it twice."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "jobqueue_" in sql:
            execute("SAVEPOINT pages", None, False, context)
            execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", params, False, context)
            (answer,) = context["cursor"].fetchone()
            execute("ROLLBACK TO SAVEPOINT pages", None, False, context)
            plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
            self.read[sql] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return execute(sql, params, many, context)


def look_for_work(bench: Bench) -> None:
    """All that an idle executor asks: for tasks, alarms, mail, executors that were lost, and what it holds itself."""
    engine = bench.engine
    queues = [f"queue-{number}" for number in range(5)]
    bench.beat()
    assert engine.queues_in_use() == []
    assert bench.claim(10, queues=queues) == []
    assert not engine.pending_maintenance(bench.executor_id).has_messages
    assert not engine.has_isolated(queues)
    assert engine.wake_due().count == 0
    assert engine.sweep() == 0
    assert engine.rescue() == []
    assert engine.aggregate_counters() == 0
    assert engine.release_unknown_claims(bench.executor_id, []) == 0


def test_idle_executor_reads_a_handful_of_pages(bench: Bench) -> None:
    pages = Pages()
    with connection.execute_wrapper(pages):
        look_for_work(bench)

    assert len(pages.read) >= 10
    assert {sql: count for sql, count in pages.read.items() if count > MOST_PAGES} == {}


def test_letters_of_others_do_not_slow_the_sweep(bench: Bench) -> None:
    """The sweep reads by what has mail and sleeps, not by who sleeps."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM jobqueue_task ORDER BY random() LIMIT 5")
        woken = [pk for (pk,) in cursor.fetchall()]
    for pk in woken:
        bench.send(pk)
    pages = Pages()
    with connection.execute_wrapper(pages):
        assert bench.engine.sweep() == 5

    assert sum(pages.read.values()) < 5 * len(pages.read) * MOST_PAGES
