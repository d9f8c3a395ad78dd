"""What the statements read at a million rows, with statistics from an empty queue and with fresh ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from jobqueue.engine.clock import bound
from jobqueue.engine.portable import queues as portable_queues
from jobqueue.engine.postgres import queues as postgres_queues
from jobqueue.engine.postgres.connection import statement
from jobqueue.engine.postgres.enqueue import PostgresEnqueuer
from jobqueue.engine.postgres.messages import PostgresMessages
from jobqueue.inspect import queries, stats
from jobqueue.inspect.task_filter import TaskFilter
from jobqueue.models import Executor, Task
from jobqueue.records import FINAL, Effects, NewMessage, Outcome, PoolName, Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db

SQL_FILES = sorted(path.stem for path in (Path(__file__).parents[2] / "jobqueue/engine/postgres/sql").glob("*.sql"))
BIG = {"jobqueue_task", "jobqueue_inboxmessage", "jobqueue_counterdelta"}
FUNCTION = "jobqueue_enqueue("  # EXPLAIN does not look into it; what it reads as it runs is counted all the same
# A batch of 1,000 from each of five queues, and what lies around it; the 830,000 finished and the 100,000 scheduled
# rows are far beyond.
MOST_ROWS = 6000

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
    now(), CASE WHEN status IN ('SUCCESSFUL', 'FAILED', 'CANCELLED') THEN now() END
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
# The sweep steps over each mailbox with unread mail, here of 2,000 READY tasks.
LETTERS = """
INSERT INTO jobqueue_inboxmessage (task_id, body, sent_at, consumed_at)
SELECT id, 'null', now(), CASE WHEN status <> 'READY' THEN now() END
FROM jobqueue_task
WHERE (status = 'READY' AND priority < 2 AND id < lpad(to_hex(200000), 32, '0')::uuid)
    OR (status = 'SUCCESSFUL' AND priority < 2)
"""


@pytest.fixture(scope="module")
def big_queue(django_db_setup: None, django_db_blocker: Any) -> Iterator[Bench]:
    """A schema of its own, so that nobody else meets these rows or what the planner believes of them."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA plans")
        cursor.execute("SET search_path = plans")
        try:
            migrations = MigrationExecutor(connection)
            migrations.migrate([node for node in migrations.loader.graph.leaf_nodes() if node[0] == "jobqueue"])
            for table in BIG:
                cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            cursor.execute("ANALYZE")
            cursor.execute(FILL)
            cursor.execute(LETTERS)
            cursor.execute(DELTAS)
            # As an executor has it; what EXPLAIN shows is the plan for these parameters all the same.
            cursor.execute(statement("generic_plans"))
            before, connection.connection.prepare_threshold = connection.connection.prepare_threshold, 0
            yield make_bench("postgresql")
        finally:
            connection.connection.prepare_threshold = before
            cursor.execute("RESET plan_cache_mode")
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA plans CASCADE")


@pytest.fixture(scope="module", params=["empty", "fresh"])
def statistics(request: pytest.FixtureRequest, big_queue: Bench) -> str:
    if request.param == "fresh":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE jobqueue_task, jobqueue_inboxmessage, jobqueue_counterdelta")
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
    """Explains and analyses every statement before it runs, and undoes that; then counts what it reads as it runs."""

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self.statements = 0
        self.faults: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if any(name in sql for name in (*BIG, FUNCTION)) and not sql.startswith("EXPLAIN"):
            self.statements += 1
            execute("SAVEPOINT reader", None, False, context)
            for node in explain(execute, sql, params, context, "ANALYZE, TIMING OFF, "):
                self.look_at(node, sql)
            execute("ROLLBACK TO SAVEPOINT reader", None, False, context)
        before = self.counts()
        answer = execute(sql, params, many, context)
        for table, counts in self.counts().items():
            in_turn, by_index = (now - then for now, then in zip(counts, before.get(table, (0, 0)), strict=True))
            if in_turn or by_index > 3 * self.most_rows:  # of all its parts
                self.faults.append(f"{table}: {in_turn} rows in turn, {by_index} by index, as it ran: {sql[:600]}")
        return answer

    def counts(self) -> dict[str, tuple[int, int]]:
        rows = connection.connection.execute(READ, [list(BIG)])
        return {table: (in_turn, by_index) for table, in_turn, by_index in rows}

    def look_at(self, node: dict[str, Any], sql: str) -> None:
        dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        read = (node["Actual Rows"] + dropped) * node["Actual Loops"]
        if node["Node Type"] == "Seq Scan" or read > self.most_rows:
            index = node.get("Index Name", "")
            self.faults.append(f"{node['Node Type']} {index} of {node['Relation Name']}, {read:.0f} rows: {sql[:600]}")


def read(call: Callable[[], Any], *, at_least: int = 1, most_rows: int = MOST_ROWS) -> Any:
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
    def test_enqueue(self, bench: Bench, size: int) -> None:
        read(lambda: bench.engine.enqueue([new() for _ in range(size)]))

    def test_enqueue_with_keys_half_of_them_held(self, bench: Bench, size: int) -> None:
        held = Task.objects.filter(finished_at=None, key__isnull=False).values_list("key", flat=True)[: size // 2]
        rows = [new(key=key) for key in held] + [new(key=f"new-{number}") for number in range(size - size // 2)]

        answers = read(lambda: bench.engine.enqueue(rows))

        assert sum(answer.created for answer in answers) == size - size // 2

    def test_enqueue_once_with_half_of_the_keys_seen(self, bench: Bench, size: int) -> None:
        bench.engine.enqueue_once([new(idempotency_key=f"key-{number}") for number in range(size // 2)])
        rows = [new(idempotency_key=f"key-{number}") for number in range(size)]

        answers = read(lambda: bench.engine.enqueue_once(rows))

        assert sum(answer.created for answer in answers) == size - size // 2

    @pytest.mark.parametrize("queues", [["queue-1"], QUEUES])
    def test_claim(self, bench: Bench, size: int, queues: list[str]) -> None:
        assert len(read(lambda: bench.claim(size, queues=queues))) == size

    def test_commit_plain(self, bench: Bench, size: int) -> None:
        outcomes = claims(bench, size)

        assert len(read(lambda: bench.commit(*outcomes)).done) == size

    def test_commit_actors(self, bench: Bench, size: int) -> None:
        receivers = list(Task.objects.suspended().values_list("pk", flat=True)[:size])
        outcomes = claims(bench, size)
        mail = [bench.send(outcome.task_id)[0] for outcome in outcomes]
        outcomes = [
            Outcome(
                task_id=done.task_id,
                claim_number=done.claim_number,
                status=Status.SUSPENDED,
                attempts=0,
                effects=Effects(consumed=[number], spawn=[new()], send=[NewMessage(task_id=receiver, body="null")]),
            )
            for done, number, receiver in zip(outcomes, mail, receivers, strict=True)
        ]

        assert len(read(lambda: bench.commit(*outcomes), at_least=5).done) == size

    def test_commit_children(self, bench: Bench, size: int) -> None:
        parents = list(Task.objects.suspended().values_list("pk", flat=True)[:size])
        outcomes = claims(bench, size)
        for child, parent in zip(outcomes, parents, strict=True):
            bench.set(child.task_id, parent_id=parent)
        outcomes = [
            Outcome(
                task_id=done.task_id,
                claim_number=done.claim_number,
                status=Status.SUCCESSFUL,
                attempts=0,
                parent_id=parent,
            )
            for done, parent in zip(outcomes, parents, strict=True)
        ]

        assert len(read(lambda: bench.commit(*outcomes)).done) == size

    def test_count_unread(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.suspended().values_list("pk", flat=True)[:size])
        for pk in ids:
            bench.send(pk)

        assert read(lambda: bench.engine.count_unread(ids)) == dict.fromkeys(ids, 1)

    def test_commit_of_what_is_gone(self, bench: Bench, size: int) -> None:
        outcomes = [Outcome(task_id=uuid4(), claim_number=1, status=Status.SUCCESSFUL, attempts=0) for _ in range(size)]

        assert len(read(lambda: bench.commit(*outcomes)).lost) == size

    def test_pulse(self, bench: Bench, size: int) -> None:
        outcomes = claims(bench, size)

        committed, claimed = read(lambda: bench.engine.commit_and_claim(outcomes, bench.demand(size, queues=QUEUES)))

        assert (len(committed.done), len(claimed)) == (size, size)

    def test_release_strays(self, bench: Bench, size: int) -> None:
        claims(bench, size)

        assert read(lambda: bench.engine.release_unknown_claims(bench.executor_id, [])) == size

    def test_wake(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.suspended().values_list("pk", flat=True)[:size])

        assert read(lambda: bench.engine.wake(ids)) == size

    def test_wake_due(self, bench: Bench, size: int) -> None:
        scheduled = Task.objects.scheduled().values_list("pk", flat=True)
        Task.objects.filter(pk__in=list(scheduled[:size])).update(wake_at=bench.engine.now())

        assert read(lambda: bench.engine.wake_due()).count == size

    def test_sweep(self, bench: Bench, size: int) -> None:
        """Beside 3,300 letters to tasks that are READY, and 9,900 sleepers without mail."""
        for pk in list(Task.objects.suspended().order_by("?").values_list("pk", flat=True)[:size]):
            bench.send(pk)

        assert read(lambda: bench.engine.sweep()) == size

    @pytest.mark.parametrize("status", ["READY", "SUSPENDED", "FAILED"])
    def test_cancel_and_requeue(self, bench: Bench, size: int, status: str) -> None:
        ids = list(Task.objects.filter(status=status).values_list("pk", flat=True)[:size])
        if status != "FAILED":
            assert read(lambda: bench.engine.cancel(ids)).cancelled == size

        assert read(lambda: bench.engine.requeue(ids)).requeued == size

    def test_prune(self, bench: Bench, size: int) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0, "FAILED": None, "CANCELLED": 86_400.0})

        assert read(lambda: bench.engine.prune(size)) == size

    def test_send(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.ready().values_list("pk", flat=True)[:size])

        assert len(read(lambda: bench.engine.send([NewMessage(task_id=pk, body="1") for pk in ids]))) == size

    def test_send_of_repeats_to_tasks_that_have_ended(self, bench: Bench, size: int) -> None:
        ids = list(Task.objects.successful().values_list("pk", flat=True)[:size])
        repeats = [NewMessage(task_id=pk, body="1", dedupe_key="k") for pk in ids]
        PostgresMessages(bench.engine.db)._insert_all(repeats)

        assert read(lambda: bench.engine.send(repeats)) == []

    def test_descendants(self, bench: Bench, size: int) -> None:
        parents = list(Task.objects.successful().values_list("pk", flat=True)[:size])
        for parent, child in zip(parents, Task.objects.ready()[:size], strict=True):
            bench.set(child.pk, parent_id=parent)

        assert len(read(lambda: bench.engine.descendants(parents))) == size


def test_find_seen(bench: Bench) -> None:
    pk = Task.objects.successful().values_list("pk", flat=True)[0]
    bench.set(pk, key="past")
    PostgresMessages(bench.engine.db)._insert_all([NewMessage(task_id=pk, body="1", dedupe_key="k")])

    assert read(lambda: bench.engine.find_seen({("past", "k"), ("past", "other")})) == {("past", "k"): pk}


def test_last_holders_of_keys(bench: Bench) -> None:
    ended = Task.objects.successful().values_list("pk", flat=True)[0]
    bench.set(ended, key="past")
    live, enqueuer = bench.add(key="live"), bench.engine.enqueuer
    assert isinstance(enqueuer, PostgresEnqueuer)

    holders = read(lambda: enqueuer._last_holders_of({"past", "live", "never"}))

    assert {key: holder.id for key, holder in holders.items()} == {"past": ended, "live": live}


def test_claim_for_one_pool_beside_tasks_of_the_other(bench: Bench) -> None:
    Task.objects.ready().update(pool="async")

    assert not read(lambda: bench.claim(10, queues=QUEUES, pool_limits={PoolName.ASYNC: 0}))
    assert len(read(lambda: bench.claim(10, queues=QUEUES))) == 10


def test_claim_isolated(bench: Bench) -> None:
    assert len(read(lambda: bench.claim_isolated(queues=QUEUES), at_least=3)) == 1


def test_move_to_pool(bench: Bench) -> None:
    ids = list(Task.objects.ready().values_list("pk", flat=True)[:100])

    read(lambda: bench.engine.move_to_pool(ids, PoolName.ASYNC))

    assert Task.objects.filter(pool="async").count() == 100


def test_has_suspects(bench: Bench) -> None:
    assert read(lambda: bench.engine.has_isolated(QUEUES))
    Task.objects.filter(executor_losses__gt=0).update(executor_losses=0)
    assert not read(lambda: bench.engine.has_isolated(QUEUES))


def test_queues_in_use(bench: Bench) -> None:
    assert read(lambda: bench.engine.queues_in_use()) == QUEUES


def test_draining(bench: Bench) -> None:
    assert [queue.queue_name for queue in read(lambda: bench.engine.queue_latency())] == QUEUES


def test_gauges(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "MAX_COUNTED", 500)

    found = read(lambda: bench.engine.gauges(), at_least=5)

    estimates = {(depth.queue_name, str(depth.status)) for depth in found.depths if depth.is_estimate}
    assert estimates == {(queue, status) for queue in QUEUES for status in ("READY", "SCHEDULED", "SUSPENDED")}
    assert found.in_flight == 334


def test_fold(bench: Bench) -> None:
    bench.engine.enqueue([new(queue_name=queue) for queue in QUEUES])

    assert [read(lambda: bench.engine.aggregate_counters(500)) for _ in range(2)] == [500, 500]
    assert sum(counted.submitted for counted in bench.engine.counter_totals()) >= 1000


@pytest.mark.parametrize("queues", [None, QUEUES, ["queue-3"]])
def test_is_drained(bench: Bench, queues: list[str] | None) -> None:
    assert not read(lambda: bench.engine.is_drained(queues, 1.0))
    Task.objects.ready().update(status="FAILED")
    assert read(lambda: bench.engine.is_drained(queues, 1.0)) == (queues == ["queue-3"])
    Task.objects.running().update(status="FAILED")
    assert read(lambda: bench.engine.is_drained(queues, 1.0))
    assert not read(lambda: bench.engine.is_drained(queues, 2 * 86_400.0))


def test_what_is_due(bench: Bench) -> None:
    due = read(lambda: bench.engine.pending_maintenance(bench.executor_id))
    assert due.alarm_seconds == pytest.approx(86_400, rel=0.1)
    assert (due.has_running, due.has_messages, due.has_isolated) == (True, True, True)


def test_wake_due_without_anything_due(bench: Bench) -> None:
    assert read(lambda: bench.engine.wake_due()).count == 0


def test_heartbeat(bench: Bench) -> None:
    bench.executor_id = UUID(int=1)

    assert len(read(lambda: bench.beat())) == len(read(lambda: bench.beat()))


def test_rescue_with_and_without_lost_executors(bench: Bench) -> None:
    assert read(lambda: bench.engine.rescue()) == []  # writes the executors, which have no rows yet
    Executor.objects.update(heartbeat=bound(-31))
    Task.objects.running().update(claimed_at=bound(-31))
    assert len(read(lambda: bench.engine.rescue(), at_least=4)) == 100


class TestCommandLine:
    """
    What `manage.py jobqueue` reads: so many rows and no more, whatever the planner believes.

    But where a million rows were never analysed, it sorts what is scheduled, as the index that tells the queues apart
    is the smaller one.
    """

    @pytest.fixture
    def most_scheduled(self, statistics: str) -> int:
        return 100_000 if statistics == "empty" else MOST_ROWS

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (stats, queries):
            monkeypatch.setattr(module, "CAP", 1000)

    def test_status(self, bench: Bench, most_scheduled: int) -> None:
        read(lambda: stats.read_stats(bench.engine), at_least=10, most_rows=most_scheduled)

    @pytest.mark.parametrize("status", Status)
    def test_two_pages_of_a_status(self, bench: Bench, status: Status, most_scheduled: int) -> None:
        pages = queries.walk(queries.of_status(bench.engine, status), queries.ORDER[status], TaskFilter(), page=500)
        most_rows = most_scheduled if status is Status.SCHEDULED else MOST_ROWS
        read(lambda: [next(pages, None), next(pages, None)], most_rows=most_rows)

    @pytest.mark.parametrize("status", FINAL)
    def test_tail(self, bench: Bench, status: Status) -> None:
        read(lambda: queries.newest(bench.engine, status, TaskFilter(tasks=("rare",)), None, 10))
        since = bench.engine.now() - timedelta(seconds=10)
        read(lambda: queries.newest(bench.engine, status, TaskFilter(), since, 500))

    @pytest.mark.parametrize("status", FINAL)
    def test_purge(self, bench: Bench, status: Status) -> None:
        read(lambda: bench.engine.prune_status(status, 0.0, 500))


@pytest.mark.parametrize("name", SQL_FILES)
def test_generic_plan(bench: Bench, name: str) -> None:
    """As a prepared statement is planned, without a look at its parameters."""
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
def test_claim_of_queues_with_limits(bench: Bench, size: int) -> None:
    for queue in QUEUES:
        bench.limit(queue, size)

    running = Task.objects.running().filter(queue_name="queue-0").count()

    claimed = read(lambda: bench.claim(5 * size, queues=QUEUES, limited=QUEUES, most=dict.fromkeys(QUEUES, size)))

    assert len(claimed) == 4 * size + max(0, size - running)


def test_has_suspects_in_queues_with_limits(bench: Bench) -> None:
    for queue in QUEUES:
        bench.limit(queue, 1000)

    assert read(lambda: bench.engine.has_isolated(QUEUES))
