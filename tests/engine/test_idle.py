"""An idle executor reads few pages per statement beside a million suspended actors, or as many sleeping workflows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from tests.engine.bench import Bench
from tests.engine.conftest import make_bench
from tests.engine.sessions import separate_schema

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

ACTORS = 1_000_000
MAX_PAGES = 40  # per statement: an index of a million rows has three or four levels, and there are five queues
MORE_PAGES = 2  # of a statement: a larger index has another level

WORKFLOWS = int(os.environ.get("JOBQUEUE_ROWS") or 20_000)
FEW_WORKFLOWS = 1000

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
# Workflows that sleep: a step, the sleep, and the state with the wait.
SLEEPERS = """
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, inner_state, status, wake_at,
    claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at, last_attempted_at
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, 'default', 'queue-' || n %% 5, 'tests.script', 0, now(), '[]', '{}', '{}', '{}',
    '{"code": "1", "waiting": {"name": "sleep", "kind": "sleep"}}', 'SUSPENDED', now() + n * interval '1 hour',
    1, '[]', 0, 4, 1, 0, '[]', now(), now()
FROM generate_series(%(first)s, %(last)s) AS n
"""
JOURNALS = """
INSERT INTO jobqueue_journalentry (task_id, name, kind, status, attempts, due_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, name, kind, status, 1, now() + n * interval '1 hour'
FROM generate_series(%(first)s, %(last)s) AS n,
    (VALUES ('work', 'STEP', 'SUCCESSFUL'), ('sleep', 'SLEEP', 'WAITING')) AS entry (name, kind, status)
"""


@pytest.fixture(scope="module")
def suspended_actors(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Insert suspended actors in a separate schema with the statistics of an empty queue."""
    with django_db_blocker.unblock(), separate_schema("idle", "jobqueue_inboxmessage", "jobqueue_task") as cursor:
        for table in ("jobqueue_inboxmessage", "jobqueue_task"):
            cursor.execute(f"ALTER TABLE {table} SET UNLOGGED")
        cursor.execute(FILL, [ACTORS])
        yield


@pytest.fixture(scope="module", params=["empty", "fresh"])
def statistics(request: pytest.FixtureRequest, suspended_actors: None) -> None:
    if request.param == "fresh":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE jobqueue_task, jobqueue_inboxmessage")


@pytest.fixture
def bench(statistics: None, db: None) -> Bench:
    return make_bench("postgresql")


class Pages:
    """Count the pages that each statement reads. Each statement runs twice."""

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
    """Run every query of an idle executor."""
    engine = bench.engine
    queues = [f"queue-{number}" for number in range(5)]
    bench.beat()
    assert engine.queues.queues_in_use() == []
    assert bench.claim(10, queues=queues) == []
    assert not engine.executors.pending_maintenance(bench.executor_id).has_messages
    assert not engine.claims.has_isolated(queues)
    assert engine.inbox.wake_due() == 0
    assert engine.messages.sweep() == 0
    assert engine.executors.rescue() == []
    assert engine.counters.aggregate_counters() == 0
    assert engine.commits.release_unknown_claims(bench.executor_id, []) == 0


def test_idle_executor_reads_few_pages(bench: Bench) -> None:
    pages = Pages()
    with connection.execute_wrapper(pages):
        look_for_work(bench)

    assert len(pages.read) >= 10
    assert {sql: count for sql, count in pages.read.items() if count > MAX_PAGES} == {}


def test_sweep_reads_few_pages_beside_many_suspended_actors(bench: Bench) -> None:
    """The sweep starts from unread messages and not from suspended tasks."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM jobqueue_task ORDER BY random() LIMIT 5")
        woken = [pk for (pk,) in cursor.fetchall()]
    for pk in woken:
        bench.send(pk)
    pages = Pages()
    with connection.execute_wrapper(pages):
        assert bench.engine.messages.sweep() == 5

    assert sum(pages.read.values()) < 5 * len(pages.read) * MAX_PAGES


def test_idle_executor_reads_the_same_beside_many_sleeping_workflows(
    django_db_setup: None, django_db_blocker: Any
) -> None:
    """With JOBQUEUE_ROWS=1000000, beside a million: the same statements, and at most one page more for each."""
    tables = ("jobqueue_inboxmessage", "jobqueue_task", "jobqueue_journalentry")
    read: list[dict[str, int]] = []
    with django_db_blocker.unblock(), separate_schema("sleepers", *tables) as cursor:
        bench = make_bench("postgresql")
        for first, last in ((1, FEW_WORKFLOWS), (FEW_WORKFLOWS + 1, WORKFLOWS)):
            for statement in (SLEEPERS, JOURNALS):
                cursor.execute(statement, {"first": first, "last": last})
            cursor.execute("ANALYZE jobqueue_task, jobqueue_journalentry")
            look_for_work(bench)  # once before, so that statements are prepared
            pages = Pages()
            with transaction.atomic(), connection.execute_wrapper(pages):
                look_for_work(bench)
            read.append(pages.read)
    few, many = read
    assert few.keys() == many.keys()
    assert not [sql for sql in many if "jobqueue_journalentry" in sql]
    assert {sql: count for sql, count in many.items() if count > min(few[sql] + MORE_PAGES, MAX_PAGES)} == {}
