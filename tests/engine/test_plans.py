"""Rows that statements read in a table of a million, with old and with fresh statistics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from msgspec.structs import replace

from jobqueue.engine import counting
from jobqueue.engine import queues as portable_queues
from jobqueue.engine.code_waits import BlockedHead, ReadyHead, Verdict
from jobqueue.engine.inbox import InboxStatements
from jobqueue.engine.postgres import queues as postgres_queues
from jobqueue.engine.postgres.connection import statement
from jobqueue.engine.schedules import RESOLUTION
from jobqueue.models import AdmissionRequest, Heartbeat, Schedule, Task
from jobqueue.models.clock import clock_to_compare
from jobqueue.operations import limits, queries
from jobqueue.operations.bulk import target
from jobqueue.operations.bulk.actions import CANCEL, DELETE, REQUEUE
from jobqueue.operations.list import selection
from jobqueue.operations.overview import stats
from jobqueue.values.policies import Overlap
from jobqueue.values.records import Effects, NewMessage, Outcome
from jobqueue.values.states import FINAL, LimitKind, PoolName, Status
from tests.engine.bench import Bench, new, outcome, success
from tests.engine.conftest import make_bench
from tests.engine.sessions import separate_schema

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

SQL_FILES = sorted(path.stem for path in (Path(__file__).parents[2] / "jobqueue/engine/postgres/sql").glob("*.sql"))
BIG = {
    "jobqueue_task",
    "jobqueue_inboxmessage",
    "jobqueue_counterdelta",
    "jobqueue_schedule",
    "jobqueue_scheduletick",
}
# Also jobqueue_enqueue_plain. EXPLAIN does not show the statements of a function; `Reader.counts` counts their rows.
FUNCTIONS = ("jobqueue_enqueue", "jobqueue_record")
# Enough for 1,000 tasks of each of five queues. The 830,000 finished and 100,000 scheduled tasks exceed it by far.
MAX_ROWS = 6000

FILL = """
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id, status,
    wake_at, claimed_at, executor_id, claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors,
    enqueued_at, finished_at
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, 'default', 'queue-' || n / 30 % 5, 'tests.noop', n % 7, now() - n * interval '1 ms',
    '[]', '{}', '{}', '{}', CASE WHEN n % 10 = 0 THEN 'key-' || n END, NULL, status,
    CASE WHEN status = 'SCHEDULED' OR (status = 'SUSPENDED' AND n % 3 = 0) THEN now() + interval '1 day' END,
    CASE WHEN status = 'RUNNING' THEN now() END,
    CASE WHEN status = 'RUNNING' THEN lpad(to_hex(n % 4), 32, '0')::uuid END,
    0, '[]', 0, 4, 0, CASE WHEN status = 'READY' AND n % 3000 = 2999 THEN 2 ELSE 0 END, '[]',
    now(), CASE WHEN status IN ('SUCCESSFUL', 'FAILED', 'CANCELLED') THEN now() - n * interval '1 ms' END
FROM (
    SELECT n, CASE
        WHEN n % 30 < 23 THEN 'SUCCESSFUL' WHEN n % 30 = 23 THEN 'FAILED' WHEN n % 30 = 24 THEN 'CANCELLED'
        WHEN n % 30 < 28 THEN 'SCHEDULED' WHEN n % 3000 = 28 THEN 'RUNNING' WHEN n % 30 = 28 THEN 'SUSPENDED'
        ELSE 'READY'
    END AS status
    FROM generate_series(1, 1000000) AS n
) AS numbered
"""
DELTAS = """
INSERT INTO jobqueue_counterdelta (backend, queue_name, task_type, at, submitted)
SELECT 'default', 'queue-1', 'tests.noop', now(), 1 FROM generate_series(1, 100000)
"""
# The sweep passes every task with unread messages, here 2,000 READY tasks.
MESSAGES = """
INSERT INTO jobqueue_inboxmessage (task_id, body, sent_at, consumed_at)
SELECT id, 'null', now(), CASE WHEN status <> 'READY' THEN now() END
FROM jobqueue_task
WHERE (status = 'READY' AND priority < 2 AND id < lpad(to_hex(200000), 32, '0')::uuid)
    OR (status = 'SUCCESSFUL' AND priority < 2)
"""
SCHEDULES = """
INSERT INTO jobqueue_schedule (
    id, backend, name, task_type, new_task, expression, timezone, jitter_seconds, overlap, catch_up, max_catch_up,
    declared_at, paused_by, pause_reason, next_at, due_at, created_at, updated_at
)
SELECT n, 'default', 'schedule-' || n, 'tests.noop', '{"task_type": "tests.noop"}', '@every 86400', '', 0, 'skip',
    'latest', 100, '', '', '', now() + interval '1 day', now() + interval '1 day', now(), now()
FROM generate_series(1, 10000) AS n
"""
# The history of each schedule: the ticks of ten days.
TICKS = """
INSERT INTO jobqueue_scheduletick (schedule_id, "trigger", tick_at, last_at, count, task_id, reason, recorded_at)
SELECT n, 'schedule', at, at, 1, CASE WHEN n % 2 = 0 THEN gen_random_uuid() END,
    CASE WHEN n % 2 = 0 THEN '' ELSE 'overlap' END, at
FROM generate_series(1, 10000) AS n, generate_series(now() - interval '10 days', now(), interval '1 day') AS at
"""


# Tasks of 2,000 keys that wait for a concurrency limit, and as many that wait for a rate.
LIMITED = """
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, status, claim_number,
    worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at, concurrency_key,
    concurrency_limit, rate_key, rate_limit, rate_seconds
)
SELECT gen_random_uuid(), 'default', 'queue-1', 'tests.noop', 0, now() - n * interval '1 ms', '[]', '{}', '{}', '{}',
    'BLOCKED', 0, '[]', 0, 4, 0, 0, '[]', now(),
    CASE WHEN n % 2 = 0 THEN 'slots:key-' || n / 2 % 2000 END, CASE WHEN n % 2 = 0 THEN 1 END,
    CASE WHEN n % 2 = 1 THEN 'starts:key-' || n / 2 % 2000 END, CASE WHEN n % 2 = 1 THEN 10 END,
    CASE WHEN n % 2 = 1 THEN 60 END
FROM generate_series(1, 40000) AS n
"""


@pytest.fixture(scope="module")
def big_queue(django_db_setup: None, django_db_blocker: Any) -> Iterator[Bench]:
    """Fill a separate schema, so that other tests see neither its rows nor its statistics."""
    with django_db_blocker.unblock(), separate_schema("plans", *BIG) as cursor:
        for fill in (FILL, MESSAGES, DELTAS, SCHEDULES, TICKS):
            cursor.execute(fill)
        # Executors use generic plans. EXPLAIN still shows the plan for these parameters.
        cursor.execute(statement("generic_plans"))
        before, connection.connection.prepare_threshold = connection.connection.prepare_threshold, 0
        yield make_bench("postgresql")
        connection.connection.prepare_threshold = before
        cursor.execute("RESET plan_cache_mode")
        cursor.execute("RESET enable_seqscan")


@pytest.fixture(scope="module", params=["empty", "fresh"])
def statistics(request: pytest.FixtureRequest, big_queue: Bench) -> str:
    if request.param == "fresh":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {', '.join(sorted(BIG))}")
    return str(request.param)


@pytest.fixture
def bench(big_queue: Bench, statistics: str, db: None) -> Bench:
    return big_queue


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def explain(execute: Callable[..., Any], sql: str, params: Any, context: Any, options: str) -> list[dict[str, Any]]:
    execute(f"EXPLAIN ({options}FORMAT JSON) {sql}", params, False, context)
    (answer,) = context["cursor"].fetchone()
    plans = json.loads(answer) if isinstance(answer, str) else answer
    return [node for node in nodes(plans[0]["Plan"]) if node.get("Relation Name") in BIG]


READ = """
    SELECT relname::text, seq_tup_read, COALESCE(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
    WHERE relname = ANY(%s)
"""


class Reader:
    """
    Count the rows that each statement reads.

    explains: run EXPLAIN ANALYZE before it, and undo that. EXPLAIN makes a plan of its own.
    """

    def __init__(self, most_rows: int, tables: Collection[str] = BIG, *, explains: bool = True) -> None:
        self.most_rows = most_rows
        self.tables = tables
        self.explains = explains
        self.statements = 0
        self.faults: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if any(name in sql for name in (*self.tables, *FUNCTIONS)) and not sql.startswith("EXPLAIN"):
            self.statements += 1
            if self.explains:
                self.explain(execute, sql, params, context)
        before = self.counts()
        answer = execute(sql, params, many, context)
        for table, counts in self.counts().items():
            sequential, by_index = (now - then for now, then in zip(counts, before.get(table, (0, 0)), strict=True))
            if sequential or by_index > 3 * self.most_rows:  # the sum of all its scans
                self.faults.append(
                    f"{table}: {sequential} rows in sequence, {by_index} by index, as it ran: {sql[:600]}"
                )
        return answer

    def explain(self, execute: Callable[..., Any], sql: str, params: Any, context: Any) -> None:
        execute("SAVEPOINT reader", None, False, context)
        for node in explain(execute, sql, params, context, "ANALYZE, TIMING OFF, "):
            if node["Relation Name"] in self.tables:
                self.check_node(node, sql)
        execute("ROLLBACK TO SAVEPOINT reader", None, False, context)

    def counts(self) -> dict[str, tuple[int, int]]:
        rows = connection.connection.execute(READ, [list(self.tables)])
        return {table: (sequential, by_index) for table, sequential, by_index in rows}

    def check_node(self, node: dict[str, Any], sql: str) -> None:
        dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        read = (node["Actual Rows"] + dropped) * node["Actual Loops"]
        if node["Node Type"] == "Seq Scan" or read > self.most_rows:
            index = node.get("Index Name", "")
            self.faults.append(f"{node['Node Type']} {index} of {node['Relation Name']}, {read:.0f} rows: {sql[:600]}")


def read(call: Callable[[], Any], *, at_least: int = 1, most_rows: int = MAX_ROWS) -> Any:
    reader = Reader(most_rows)
    with connection.execute_wrapper(reader):
        answer = call()
    assert reader.statements >= at_least
    assert not reader.faults, "\n\n".join(reader.faults)
    return answer


QUEUES = [f"queue-{number}" for number in range(5)]


def claims(bench: Bench, count: int) -> list[Outcome]:
    claimed = bench.claim(count, queues=QUEUES)
    assert len(claimed) == count
    return [outcome(task, worker_id="w") for task in claimed]


@pytest.mark.parametrize("size", [1, 100, 1000])
class TestBatches:
    """It has more than 20 methods because each statement that takes a batch is tested with the same sizes."""

    def test_enqueue_reads_few_rows(self, bench: Bench, size: int) -> None:
        read(lambda: bench.engine.enqueues.enqueue([new() for _ in range(size)]))

    def test_enqueue_with_half_of_keys_taken_reads_few_rows(self, bench: Bench, size: int) -> None:
        held = Task.objects.filter(finished_at=None, key__isnull=False).values_list("key", flat=True)[: size // 2]
        rows = [new(key=key) for key in held] + [new(key=f"new-{number}") for number in range(size - size // 2)]

        answers = read(lambda: bench.engine.enqueues.enqueue(rows))

        assert sum(answer.created for answer in answers) == size - size // 2

    def test_enqueue_once_with_half_of_keys_known_reads_few_rows(self, bench: Bench, size: int) -> None:
        bench.engine.enqueues.enqueue_once([new(idempotency_key=f"key-{number}") for number in range(size // 2)])
        rows = [new(idempotency_key=f"key-{number}") for number in range(size)]

        answers = read(lambda: bench.engine.enqueues.enqueue_once(rows))

        assert sum(answer.created for answer in answers) == size - size // 2

    @pytest.mark.parametrize("queues", [["queue-1"], QUEUES])
    def test_claim_reads_few_rows(self, bench: Bench, size: int, queues: list[str]) -> None:
        assert len(read(lambda: bench.claim(size, queues=queues))) == size

    def test_commit_plain_reads_few_rows(self, bench: Bench, size: int) -> None:
        outcomes = claims(bench, size)

        assert len(read(lambda: bench.commit(*outcomes)).done) == size

    def test_commit_actors_reads_few_rows(self, bench: Bench, size: int) -> None:
        receivers = list(Task.objects.suspended().values_list("pk", flat=True)[:size])
        outcomes = claims(bench, size)
        messages = [bench.send(outcome.task_id)[0] for outcome in outcomes]
        outcomes = [
            replace(
                polled,
                status=Status.SUSPENDED,
                effects=Effects(consumed=[number], spawn=[new()], send=[NewMessage(task_id=receiver, body="null")]),
            )
            for polled, number, receiver in zip(outcomes, messages, receivers, strict=True)
        ]

        assert len(read(lambda: bench.commit(*outcomes), at_least=5).done) == size

    @pytest.mark.parametrize("result", ["null", '{"a": 1}'])
    def test_commit_of_successes_reads_few_rows(self, bench: Bench, size: int, result: str) -> None:
        outcomes = [success(claimed, return_value=result) for claimed in bench.claim(size, queues=QUEUES)]

        assert len(read(lambda: bench.commit(*outcomes)).done) == size

    def test_commit_children_reads_few_rows(self, bench: Bench, size: int) -> None:
        parents = list(Task.objects.suspended().values_list("pk", flat=True)[:size])
        outcomes = claims(bench, size)
        for child, parent in zip(outcomes, parents, strict=True):
            bench.set(child.task_id, parent_id=parent)
        outcomes = [replace(child, parent_id=parent) for child, parent in zip(outcomes, parents, strict=True)]

        assert len(read(lambda: bench.commit(*outcomes)).done) == size

    def test_count_unread_reads_few_rows(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.suspended().values_list("pk", flat=True)[:size])
        for pk in ids:
            bench.send(pk)

        assert read(lambda: bench.engine.inbox.count_unread(ids)) == dict.fromkeys(ids, 1)

    def test_commit_of_deleted_tasks_reads_few_rows(self, bench: Bench, size: int) -> None:
        outcomes = [Outcome(task_id=uuid4(), claim_number=1, status=Status.SUCCESSFUL, attempts=0) for _ in range(size)]

        assert len(read(lambda: bench.commit(*outcomes)).lost) == size

    def test_commit_and_claim_reads_few_rows(self, bench: Bench, size: int) -> None:
        outcomes = claims(bench, size)

        committed, claimed = read(
            lambda: bench.engine.commit_and_claim(outcomes, bench.claim_request(size, queues=QUEUES))
        )

        assert (len(committed.done), len(claimed)) == (size, size)

    def test_release_unknown_claims_reads_few_rows(self, bench: Bench, size: int) -> None:
        claims(bench, size)

        assert read(lambda: bench.engine.commits.release_unknown_claims(bench.executor_id, [])) == size

    def test_wake_reads_few_rows(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.suspended().values_list("pk", flat=True)[:size])

        assert read(lambda: bench.engine.messages.wake(ids)) == size

    def test_wake_due_reads_few_rows(self, bench: Bench, size: int) -> None:
        scheduled = Task.objects.scheduled().values_list("pk", flat=True)
        Task.objects.filter(pk__in=list(scheduled[:size])).update(wake_at=bench.engine.db.now())

        assert read(lambda: bench.engine.inbox.wake_due()) == size

    @pytest.mark.parametrize("overlap", Overlap)
    def test_fire_reads_few_rows(self, bench: Bench, size: int, overlap: Overlap) -> None:
        # For 500 and old statistics, PostgreSQL reads all 10,000 schedules in sequence. That takes milliseconds.
        now, size = bench.engine.db.now(), min(size, 100)
        due = Schedule.objects.filter(pk__lte=size)
        due.update(next_at=now, due_at=now, overlap=overlap)
        assert read(lambda: bench.engine.ticks.fire()).enqueued == size
        due.update(next_at=now + RESOLUTION, due_at=now)

        assert read(lambda: bench.engine.ticks.fire()).count == size

    def test_sweep_reads_few_rows(self, bench: Bench, size: int) -> None:
        """Beside 3,300 messages to READY tasks and 9,900 suspended tasks without messages."""
        for pk in list(Task.objects.suspended().order_by("?").values_list("pk", flat=True)[:size]):
            bench.send(pk)

        assert read(lambda: bench.engine.messages.sweep()) == size

    @pytest.mark.parametrize("status", ["READY", "SUSPENDED", "FAILED"])
    def test_cancel_and_requeue_reads_few_rows(self, bench: Bench, size: int, status: str) -> None:
        ids = list(Task.objects.filter(status=status).values_list("pk", flat=True)[:size])
        if status != "FAILED":
            assert read(lambda: bench.engine.tasks.cancel(ids)).cancelled == size

        assert read(lambda: bench.engine.tasks.requeue(ids)).requeued == size

    def test_prune_reads_few_rows(self, bench: Bench, size: int) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0, "FAILED": None, "CANCELLED": 86_400.0})

        assert read(lambda: bench.engine.tasks.prune(size)) == size

    def test_send_reads_few_rows(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.ready().values_list("pk", flat=True)[:size])

        assert len(read(lambda: bench.engine.messages.send([NewMessage(task_id=pk, body="1") for pk in ids]))) == size

    def test_repeated_send_to_finished_tasks_reads_few_rows(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.successful().values_list("pk", flat=True)[:size])
        repeats = [NewMessage(task_id=pk, body="1", dedupe_key="k") for pk in ids]
        InboxStatements(bench.engine.db, bench.engine.admissions)._insert_all(repeats)

        assert read(lambda: bench.engine.messages.send(repeats)) == []

    def test_descendants_reads_few_rows(self, bench: Bench, size: int) -> None:
        parents = list(Task.objects.successful().values_list("pk", flat=True)[:size])
        for parent, child in zip(parents, Task.objects.ready()[:size], strict=True):
            bench.set(child.pk, parent_id=parent)

        assert len(read(lambda: bench.engine.tasks.descendants(parents))) == size


def test_find_seen_reads_few_rows(bench: Bench) -> None:
    pk = Task.objects.successful().values_list("pk", flat=True)[0]
    bench.set(pk, key="past")
    InboxStatements(bench.engine.db, bench.engine.admissions)._insert_all(
        [NewMessage(task_id=pk, body="1", dedupe_key="k")]
    )

    assert read(lambda: bench.engine.messages.find_seen({("past", "k"), ("past", "other")})) == {("past", "k"): pk}


def test_find_keys_and_requeue_with_a_key_reads_few_rows(bench: Bench) -> None:
    pk, ended = Task.objects.ready().values_list("pk", flat=True)[0], Task.objects.filter(status="FAILED")[0].pk
    bench.set(pk, key="held")
    bench.set(ended, key="held")

    assert read(lambda: bench.engine.messages.find_keys({"held", "other"})) == {"held": pk}
    assert read(lambda: bench.engine.tasks.requeue([ended])).key_taken == 1


def test_claim_for_one_pool_beside_the_other_reads_few_rows(bench: Bench) -> None:
    Task.objects.ready().update(pool="async")

    assert not read(lambda: bench.claim(10, queues=QUEUES, pool_limits={PoolName.ASYNC: 0}))
    assert len(read(lambda: bench.claim(10, queues=QUEUES))) == 10


def test_move_to_pool_reads_few_rows(bench: Bench) -> None:
    ids = list(Task.objects.ready().values_list("pk", flat=True)[:100])

    read(lambda: bench.engine.claims.move_to_pool(ids, PoolName.ASYNC))

    assert Task.objects.filter(pool="async").count() == 100


def test_has_isolated_reads_few_rows(bench: Bench) -> None:
    assert read(lambda: bench.engine.claims.has_isolated(QUEUES))
    Task.objects.filter(executor_losses__gt=0).update(executor_losses=0)
    assert not read(lambda: bench.engine.claims.has_isolated(QUEUES))


@pytest.fixture
def few_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count 500 tasks of each queue and status, so that MAX_ROWS bounds them all."""
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "CAP", 500)


@pytest.mark.usefixtures("few_counted")
def test_gauges_reads_few_rows(bench: Bench) -> None:
    gauges = read(lambda: bench.engine.queues.gauges(), at_least=5)

    estimates = {(depth.queue_name, str(depth.status)) for depth in gauges.depths if depth.is_estimate}
    assert estimates == {(queue, status) for queue in QUEUES for status in ("READY", "SCHEDULED", "SUSPENDED")}
    assert gauges.in_flight == 334


def test_aggregate_counters_reads_few_rows(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new(queue_name=queue) for queue in QUEUES])

    assert [read(lambda: bench.engine.counters.aggregate_counters(500)) for _ in range(2)] == [500, 500]
    assert sum(counted.submitted for counted in bench.engine.counters.counter_totals()) >= 1000


@pytest.mark.parametrize("queues", [None, QUEUES, ["queue-3"]])
def test_has_no_work_left_reads_few_rows(bench: Bench, queues: list[str] | None) -> None:
    assert not read(lambda: bench.engine.queues.has_no_work_left(queues, 1.0))
    Task.objects.ready().update(status="FAILED")
    assert read(lambda: bench.engine.queues.has_no_work_left(queues, 1.0)) == (queues == ["queue-3"])
    Task.objects.running().update(status="FAILED")
    assert read(lambda: bench.engine.queues.has_no_work_left(queues, 1.0))
    assert not read(lambda: bench.engine.queues.has_no_work_left(queues, 2 * 86_400.0))


def test_pending_maintenance_reads_few_rows(bench: Bench) -> None:
    due = read(lambda: bench.engine.executors.pending_maintenance(bench.executor_id))
    assert due.next_wake_seconds == pytest.approx(86_400, rel=0.1)
    assert (due.has_running, due.has_messages, due.has_isolated) == (True, True, True)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda bench: bench.engine.queues.queues_in_use(), QUEUES),
        (lambda bench: [queue.queue_name for queue in bench.engine.queues.queue_latency()], QUEUES),
        (lambda bench: len(bench.claim_isolated(queues=QUEUES)), 1),
        (lambda bench: bench.engine.inbox.wake_due(), 0),
    ],
    ids=["queues_in_use", "queue_latency", "claim_isolated", "wake_due"],
)
def test_single_query_reads_few_rows(bench: Bench, call: Callable[[Bench], object], expected: object) -> None:
    assert read(lambda: call(bench)) == expected


def test_heartbeat_reads_few_rows(bench: Bench) -> None:
    bench.executor_id = UUID(int=1)

    assert len(read(lambda: bench.beat())) == len(read(lambda: bench.beat()))


def test_rescue_with_and_without_lost_executors_reads_few_rows(bench: Bench) -> None:
    assert read(lambda: bench.engine.executors.rescue()) == []  # inserts the missing heartbeats
    Heartbeat.objects.update(at=clock_to_compare(after=-31))
    Task.objects.running().update(claimed_at=clock_to_compare(after=-31))
    assert len(read(lambda: bench.engine.executors.rescue(), at_least=4)) == 100


class TestCommandLine:
    """
    `manage.py jobqueue` reads a bounded number of rows with any statistics.

    Exception: with the statistics of an empty table, PostgreSQL prefers a smaller index and sorts scheduled tasks.
    """

    @pytest.fixture
    def most_scheduled(self, statistics: str) -> int:
        return 100_000 if statistics == "empty" else MAX_ROWS

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (stats, queries, counting):
            monkeypatch.setattr(module, "CAP", 1000)

    @pytest.mark.usefixtures("few_counted")
    def test_read_stats_reads_few_rows(self, bench: Bench, most_scheduled: int) -> None:
        read(lambda: stats.read_stats(bench.engine), at_least=9, most_rows=most_scheduled)
        read(lambda: stats.count_ended(bench.engine), at_least=3)
        read(lambda: stats.count_ended(bench.engine, 60.0), at_least=3)

    @pytest.mark.parametrize(("status", "name"), [*((status, "queue") for status in Status), (Status.READY, "task")])
    def test_two_pages_of_tasks_reads_few_rows(
        self, bench: Bench, status: Status, name: str, most_scheduled: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(target, "WALKED", 500)
        rare_tasks = selection.Selection("default", {"status": status, name: "rare"}, is_whole=True)
        action = next(action for action in (REQUEUE, CANCEL, DELETE) if status in action.statuses)
        walked = target.Target(rare_tasks, action, target.Bounds.now("default"))
        monkeypatch.setattr(target, "MAX_PAGES", 2)
        most_rows = most_scheduled if status == Status.SCHEDULED else MAX_ROWS
        read(lambda: walked.take(target.WalkPosition(), 500), most_rows=most_rows)

    @pytest.mark.parametrize("status", FINAL)
    def test_newest_tasks_reads_few_rows(self, bench: Bench, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("WINDOW", "WINDOW_OF_STATUS"):
            monkeypatch.setattr(selection, name, 1000)
        rare = selection.Selection("default", {"status": status, "task": "rare"})
        read(lambda: list(rare.rows.values_list("finished_at", "pk")[:10]))
        since = {"ended_since": (bench.engine.db.now() - timedelta(seconds=10)).isoformat()}
        last = selection.Selection("default", {"status": status, **since}, is_whole=True)
        read(lambda: list(last.rows.values_list("finished_at", "pk")[:500]))

    @pytest.mark.parametrize("status", FINAL)
    def test_prune_status_reads_few_rows(self, bench: Bench, status: Status) -> None:
        read(lambda: bench.engine.tasks.prune_status(status, 0.0, 500))


class TestLimits:
    """
    The pages of limits read a bounded number of rows beside 40,000 BLOCKED tasks.

    Exception: with the statistics of an empty table, PostgreSQL prefers the smaller index of waiting tasks for a list
    of tasks with a status.
    """

    @pytest.fixture
    def most_blocked(self, statistics: str) -> int:
        return 40_000 if statistics == "empty" else MAX_ROWS

    @pytest.fixture(autouse=True)
    def blocked(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "KEYS_CAP", 1000)
        monkeypatch.setattr(limits, "KEYS_READ", 50)
        monkeypatch.setattr("jobqueue.engine.limits.CAP", 1000)
        for module in (selection, stats, queries, counting):
            monkeypatch.setattr(module, "CAP", 1000)
        with connection.cursor() as cursor:
            cursor.execute(LIMITED)

    def test_look_at_keys_reads_few_rows(self, bench: Bench) -> None:
        due_at = bench.engine.db.now()
        keys = [(LimitKind.CONCURRENCY, "slots:key-7"), (LimitKind.RATE, "starts:key-7")]
        AdmissionRequest.objects.bulk_create(
            AdmissionRequest(backend="default", kind=kind, key=key, due_at=due_at) for kind, key in keys
        )
        assert read(bench.engine.admissions.admit_in_transaction, at_least=2, most_rows=200).queues == {"queue-1": 11}

    @pytest.mark.parametrize("counted", ["status = 'READY'", "status = 'RUNNING'", "counts_while_waiting"])
    def test_look_at_a_key_far_above_its_number_reads_few_rows(self, bench: Bench, counted: str) -> None:
        """As after its number was lowered: 5,000 tasks count, and one may."""
        column, _, value = counted.partition(" = ")
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE jobqueue_task SET concurrency_key = 'slots:key-7', concurrency_limit = 1, {column} = "
                f"{value or 'TRUE'} WHERE id IN (SELECT id FROM jobqueue_task WHERE status = 'SCHEDULED' LIMIT 5000)"
            )
        AdmissionRequest.objects.create(
            backend="default", kind=LimitKind.CONCURRENCY, key="slots:key-7", due_at=bench.engine.db.now()
        )
        assert not read(bench.engine.admissions.admit_in_transaction, most_rows=200).queues

    def test_names_and_gauges_of_limits_read_few_rows(self, bench: Bench) -> None:
        assert read(lambda: bench.engine.limits.names(LimitKind.RATE)) == ["starts"]
        gauges = read(bench.engine.limits.gauges, at_least=4)
        assert [(gauge.name, gauge.blocked) for gauge in gauges] == [("slots", 1000), ("starts", 1000)]

    def test_list_of_keys_reads_few_rows(self, bench: Bench) -> None:
        listing = read(lambda: limits.list_keys(bench.engine), at_least=10)
        assert {"slots", "starts"} == set(listing.partial)
        listing = read(lambda: limits.list_keys(bench.engine, text="key-77"), at_least=4)
        assert {listed_key.key.own for listed_key in listing.keys if listed_key.blocked} >= {
            "key-77",
            "key-770",
            "key-779",
        }

    @pytest.mark.parametrize("key", ["slots:key-7", "slots:"])
    def test_state_of_a_concurrency_key_reads_few_rows(self, bench: Bench, key: str) -> None:
        keys = [limits.Key(LimitKind.CONCURRENCY, key)]
        (state,) = read(lambda: limits.read_key_states("default", "default", keys), at_least=2)
        assert state.blocked.number == (10 if key == "slots:key-7" else 1000)

    @pytest.mark.parametrize("key", ["starts:key-7", "starts:"])
    def test_state_of_a_rate_reads_few_rows(self, bench: Bench, key: str) -> None:
        keys = [limits.Key(LimitKind.RATE, key)]
        (state,) = read(lambda: limits.read_key_states("default", "default", keys), at_least=2)
        assert state.blocked.number == (10 if key == "starts:key-7" else 1000)

    @pytest.mark.parametrize(
        ("kind", "key"), [(LimitKind.CONCURRENCY, "slots:key-7"), (LimitKind.RATE, "starts:key-7")]
    )
    def test_park_of_blocked_tasks_of_a_key_reads_few_rows(self, bench: Bench, kind: LimitKind, key: str) -> None:
        head = BlockedHead(kind, key)
        parked = read(
            lambda: bench.engine.code_waits.park(
                [head],
                lambda queue, name: True,
                lambda name, call: Verdict("{}", None),
            )
        )
        assert parked == {head: {"tests.noop": 10}}

    @pytest.mark.parametrize("key", ["concurrency:slots:key-7", "rate:starts:key-7"])
    @pytest.mark.parametrize("status", [{}, {"status": "BLOCKED"}])
    def test_tasks_of_a_key_reads_few_rows(
        self, bench: Bench, key: str, status: dict[str, str], most_blocked: int
    ) -> None:
        tasks_of_key = selection.Selection("default", {"limit": key, **status})
        assert len(read(lambda: tasks_of_key.keys, most_rows=most_blocked)) == 10

    @pytest.mark.usefixtures("few_counted")
    def test_figures_of_blocked_tasks_read_few_rows(self, bench: Bench, statistics: str) -> None:
        most_scheduled = 100_000 if statistics == "empty" else MAX_ROWS
        read(lambda: stats.read_stats(bench.engine), at_least=9, most_rows=most_scheduled)


@pytest.mark.parametrize("filters", [{}, {"status": "SUCCESSFUL"}, {"status": "READY"}], ids=str)
def test_tasks_of_a_tag_reads_few_rows(bench: Bench, filters: dict[str, str], statistics: str) -> None:
    """Exception: with the statistics of an empty table, PostgreSQL prefers the index of the status."""
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE jobqueue_task SET tags = \'["vip", "import"]\' WHERE id IN '
            "(SELECT lpad(to_hex(n * 997), 32, '0')::uuid FROM generate_series(1, 900) AS n)"
        )
    tagged = selection.Selection("default", {"tag": "vip", **filters})
    most_rows = 1_000_000 if statistics == "empty" and filters else MAX_ROWS
    number = len(read(lambda: tagged.keys, most_rows=most_rows))
    assert number == 900 if not filters else 0 < number < 900


@pytest.mark.parametrize("name", SQL_FILES)
def test_generic_plan_has_no_sequential_scan(bench: Bench, name: str) -> None:
    """Plan as for a prepared statement, without its parameters."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    sql = re.sub(r"%\((\w+)\)s", number, statement(name)).replace("%%", "%")
    arguments = f"({', '.join(['NULL'] * len(names))})" if names else ""
    with connection.cursor() as cursor:
        if not any(table in sql for table in BIG):
            return
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE generic AS {sql}")
        cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE generic{arguments}")
        (answer,) = cursor.fetchone()
        cursor.execute("DEALLOCATE generic")
    plans = json.loads(answer) if isinstance(answer, str) else answer
    scans = [node for node in nodes(plans[0]["Plan"]) if node.get("Relation Name") in BIG]
    assert scans
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_claim_of_queues_with_limits_reads_few_rows(bench: Bench, size: int) -> None:
    for queue in QUEUES:
        bench.limit(queue, size)

    running = Task.objects.running().filter(queue_name="queue-0").count()

    claimed = read(
        lambda: bench.claim(5 * size, queues=QUEUES, limited=QUEUES, max_per_queue=dict.fromkeys(QUEUES, size))
    )

    assert len(claimed) == 4 * size + max(0, size - running)


def test_has_isolated_in_queues_with_limits_reads_few_rows(bench: Bench) -> None:
    for queue in QUEUES:
        bench.limit(queue, 1000)

    assert read(lambda: bench.engine.claims.has_isolated(QUEUES))


AWAITING = """
UPDATE jobqueue_task SET status = 'AWAITING_CODE', awaits_code_since = now() - random() * interval '1 hour'
WHERE status = 'SCHEDULED' AND id < lpad(to_hex(100000), 32, '0')::uuid
"""


class TestAwaitingCode:
    """Beside 10,000 tasks that wait for code. Executors look at them twice a second."""

    @pytest.fixture
    def waiting(self, bench: Bench) -> Bench:
        with connection.cursor() as cursor:
            cursor.execute(AWAITING)
        return bench

    def test_groups_reads_few_rows(self, waiting: Bench) -> None:
        assert len(read(lambda: waiting.engine.code_waits.groups(), most_rows=100)) == 5

    def test_pages_of_calls_read_few_rows(self, waiting: Bench) -> None:
        waits = waiting.engine.code_waits
        (group, *_) = waits.groups()

        last = read(lambda: waits.calls(group, 500), most_rows=600)
        earlier = read(lambda: waits.calls(group, 500, before=last[-1].position), most_rows=600)
        later = read(lambda: waits.calls(group, 500, after=earlier[-1].position), most_rows=600)

        assert [len(page) for page in (last, earlier, later)] == [500, 500, 500]
        assert len(read(lambda: waits.last_errors([call.id for call in last]))) == 500

    def test_return_and_claim_read_few_rows(self, waiting: Bench) -> None:
        waits = waiting.engine.code_waits
        ids = [call.id for call in waits.calls(waits.groups()[0], 500)]
        request = waiting.claim_request(100, queues=QUEUES)

        _, claimed = read(lambda: waiting.engine.commit_and_claim([], request, returning=ids))

        assert (claimed.returned, len(claimed)) == (100, 100)

    def test_claim_of_ended_waits_reads_few_rows(self, waiting: Bench) -> None:
        ids = list(Task.objects.awaiting_code().values_list("pk", flat=True)[:50])
        Task.objects.filter(pk__in=ids).update(wake_at=waiting.engine.db.now())

        assert len(read(lambda: waiting.engine.code_waits.claim_ended(waiting.executor_id))) == 50

    def test_park_reads_the_head_of_the_queue(self, bench: Bench) -> None:
        head = ReadyHead("queue-1", PoolName.THREADS)
        parked = read(
            lambda: bench.engine.code_waits.park(
                [head],
                lambda queue, name: True,
                lambda name, call: Verdict("{}", None),
            ),
            most_rows=10_000,
        )

        assert parked == {head: {"tests.noop": 2000}}

    def test_depths_read_few_rows(self, waiting: Bench) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(postgres_queues, "CAP", 100)
            assert read(lambda: waiting.engine.queues.depths())
