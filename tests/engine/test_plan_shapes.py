"""
Rows that statements read beside 60,000 tasks of one shape: one family, one key, one queue, one status.

Statistics of such a table tell the planner that an equality finds most of the table. Nevertheless no statement of an
executor, and no change that people ask for, may read the table for a few rows. JOBQUEUE_ROWS=200000 fills larger ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from jobqueue.engine.postgres.connection import PostgresDatabase, statement
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.models import Heartbeat, Task
from jobqueue.models.clock import clock_to_compare
from jobqueue.values.journal import Entry, EntryKind, EntryStatus, Restart
from jobqueue.values.records import Effects, NewMessage
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome, success
from tests.engine.conftest import make_bench
from tests.engine.sessions import separate_schema
from tests.engine.test_plans import Reader

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

BIG = ("jobqueue_task", "jobqueue_inboxmessage", "jobqueue_journalentry")
ROWS = int(os.environ.get("JOBQUEUE_ROWS") or 60_000)
FEW = 20  # rows when the statistics "few" were made
MAX_ROWS = 2000  # each call works on at most 20 tasks. Some read 1,000 rows for a page or a batch
HOLDER, PARENT = UUID(int=7), UUID(int=2**100)

FILL = """
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id, status,
    wake_at, claimed_at, executor_id, claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors,
    enqueued_at, finished_at, concurrency_key, concurrency_limit, last_attempted_at
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, 'default', CASE WHEN {one_queue} THEN 'queue-1' ELSE 'queue-' || n %% 5 END,
    'tests.noop', 0, now() - n * interval '1 ms', '[]', '{{}}', '{{}}', '{{}}',
    CASE WHEN {one_key} AND status IN ('SUCCESSFUL', 'FAILED') THEN 'one' WHEN n %% 10 = 0 THEN 'key-' || n END,
    CASE WHEN {one_family} THEN %(parent)s::uuid END, status,
    CASE WHEN status = 'SCHEDULED' OR (status = 'SUSPENDED' AND n %% 3 = 0) THEN now() + interval '1 day' END,
    CASE WHEN status = 'RUNNING' THEN now() END, CASE WHEN status = 'RUNNING' THEN %(holder)s::uuid END,
    1, '[]', 0, 4, 0, 0, '[]', now(), CASE WHEN status IN ('SUCCESSFUL', 'FAILED') THEN now() END,
    CASE WHEN {one_key} THEN 'slots:one' WHEN status = 'BLOCKED' THEN 'slots:' || n %% 2000 END,
    CASE WHEN {one_key} OR status = 'BLOCKED' THEN 1 END, now()
FROM (SELECT n, {status} AS status FROM generate_series(%(first)s, %(last)s) AS n) AS numbered
"""
# The end of each child of the family; a consumed message for each tenth of other tasks.
MESSAGES = """
INSERT INTO jobqueue_inboxmessage (task_id, sender_id, body, child_status, sent_at, consumed_at)
SELECT COALESCE(parent_id, id), id, 'null', 'SUCCESSFUL', now(), CASE WHEN parent_id IS NULL THEN now() END
FROM jobqueue_task
WHERE id BETWEEN lpad(to_hex(%(first)s), 32, '0')::uuid AND lpad(to_hex(%(last)s), 32, '0')::uuid
    AND (parent_id IS NOT NULL OR key IS NOT NULL)
"""
# All entries of one task, or one of each tenth task.
JOURNALS = """
INSERT INTO jobqueue_journalentry (task_id, name, kind, status, attempts)
SELECT CASE WHEN {one_journal} THEN %(parent)s::uuid ELSE lpad(to_hex(n), 32, '0')::uuid END, 'step#' || n, 'STEP',
    'SUCCESSFUL', 1
FROM generate_series(%(first)s, %(last)s) AS n
WHERE {one_journal} OR n %% 10 = 0
"""
MIX = (
    "(ARRAY['SUCCESSFUL', 'SUCCESSFUL', 'SUCCESSFUL', 'SUCCESSFUL', 'FAILED', 'READY', 'SCHEDULED', 'SUSPENDED',"
    " 'BLOCKED', 'RUNNING'])[n % 10 + 1]"
)
EVEN = {"status": MIX, "one_family": "FALSE", "one_key": "FALSE", "one_queue": "FALSE", "one_journal": "FALSE"}
SHAPES = {
    "one_family": EVEN | {"one_family": "TRUE"},
    "one_journal": EVEN | {"one_journal": "TRUE"},
    "one_key": EVEN | {"one_key": "TRUE"},
    "one_queue": EVEN | {"one_queue": "TRUE"},
    **{
        f"all_{status}": EVEN | {"status": f"'{status}'"}
        for status in ("READY", "SCHEDULED", "BLOCKED", "SUSPENDED", "RUNNING", "SUCCESSFUL", "FAILED")
    },
}
FORGET_STATISTICS = "DELETE FROM pg_statistic WHERE starelid = ANY(%s::regclass[])"
FORGET_SIZES = "UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE oid = ANY(%s::regclass[])"


@dataclass
class Filled:
    bench: Bench
    cursor: Any
    kept: list[tuple[Any, ...]]  # the statistics of FEW rows


def fill(cursor: Any, shape: dict[str, str], first: int, last: int) -> None:
    values = {"first": first, "last": last, "parent": PARENT, "holder": HOLDER}
    conditions = {name: text.replace("%", "%%") for name, text in shape.items()}
    cursor.execute(FILL.format(**conditions), values)
    cursor.execute(MESSAGES, values)
    cursor.execute(JOURNALS.format(**conditions), values)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[Bench]:
    with django_db_blocker.unblock(), separate_schema(f"shape_{request.param.lower()}", *BIG) as cursor:
        cursor.execute("SET session_replication_role = replica")  # no check of the parent
        fill(cursor, SHAPES[request.param], 1, FEW)
        cursor.execute("RESET session_replication_role")
        bench = make_bench("postgresql")
        bench.engine.enqueues.enqueue([new(id=PARENT)])
        bench.executor_id = HOLDER
        bench.beat()
        cursor.execute(f"ANALYZE {', '.join(BIG)}")
        fill(cursor, SHAPES[request.param], FEW + 1, ROWS)
        yield bench


@pytest.fixture(scope="module", params=["few", "fresh", "empty"])
def statistics(request: pytest.FixtureRequest, shape: Bench) -> str:
    with connection.cursor() as cursor:
        if request.param == "fresh":
            cursor.execute(f"ANALYZE {', '.join(BIG)}")
        if request.param == "empty":
            cursor.execute(FORGET_STATISTICS, [list(BIG)])
            cursor.execute(FORGET_SIZES, [list(BIG)])
    return str(request.param)


@pytest.fixture(params=["default", "generic"])
def bench(request: pytest.FixtureRequest, shape: Bench, statistics: str, db: None) -> Iterator[Bench]:
    raw = connection.connection
    with connection.cursor() as cursor:
        if request.param == "generic":
            cursor.execute(statement("generic_plans"))
            raw.prepare_threshold = 0
        shape.beat()  # no executor rescues the other tasks
        fresh = Bench(shape.engine)
        fresh.beat()
        yield fresh
        raw.prepare_threshold = None
        cursor.execute("RESET plan_cache_mode")
        cursor.execute("RESET enable_seqscan")


QUEUES = [f"queue-{number}" for number in range(5)] + ["own"]


def claim(bench: Bench, count: int = 20, **changes: Any) -> list[Any]:
    """Claim tasks of a queue of their own."""
    bench.engine.enqueues.enqueue([new(queue_name="own", **changes) for _ in range(count)])
    return list(bench.claim(count, queues=["own"]))


def family(bench: Bench, count: int = 10) -> Any:
    """Return a claimed parent of a small family, and its child of which the others are children."""
    (parent,) = claim(bench, 1)
    child = bench.add(parent_id=parent.id, queue_name="own")
    for _ in range(count):
        bench.add(parent_id=child, queue_name="own")
    return parent


def commit_actors(bench: Bench) -> None:
    outcomes = []
    for claimed in claim(bench, parent_id=bench.add(queue_name="own")):
        (number,) = bench.send(claimed.id)
        message = NewMessage(task_id=claimed.id, body="null")
        effects = Effects(consumed=[number], spawn=[new()], send=[message])
        outcomes.append(outcome(claimed, Status.SUSPENDED, has_succeeded=True, effects=effects))
    assert len(bench.commit(*outcomes).done) == 20


def workflows(bench: Bench, status: Status = Status.SUSPENDED) -> list[UUID]:
    """Return workflows with a failed step and an open compensation."""
    journal = [
        Entry(name="refund", kind=EntryKind.COMPENSATION, status=EntryStatus.WAITING),
        Entry(name="charge", kind=EntryKind.STEP, status=EntryStatus.RETRYING),
    ]
    effects = Effects(journal=journal)
    claims = claim(bench)
    bench.commit(*(outcome(c, status, has_succeeded=True, inner_state="{}", effects=effects) for c in claims))
    return [claimed.id for claimed in claims]


def commit_workflows(bench: Bench, claims: list[Any]) -> None:
    steps = [Entry(name=f"step#{n}", kind=EntryKind.STEP, status=EntryStatus.SUCCESSFUL, value="1") for n in range(20)]
    restarted = Effects(journal=steps, restart=Restart("[]", "{}"))
    effects = [Effects(journal=steps, forget=["a", "b"]), restarted]
    outcomes = [
        outcome(c, Status.SUSPENDED, has_succeeded=True, effects=effects[number % 2]) for number, c in enumerate(claims)
    ]
    assert len(bench.commit(*outcomes).done) == 20


def failed_child(bench: Bench) -> UUID:
    """Return a child because of which a workflow has failed."""
    (parent,) = claim(bench, 1)
    (child,) = claim(bench, 1, parent_id=parent.id)
    spawned = Entry(name="pack", kind=EntryKind.SPAWN, status=EntryStatus.FAILED, child_id=child.id)
    state = json.dumps({"failed_child": str(child.id)})
    bench.commit(outcome(child, Status.FAILED))
    bench.commit(outcome(parent, Status.FAILED, inner_state=state, effects=Effects(journal=[spawned])))
    return UUID(str(child.id))


def record(bench: Bench, claims: list[Any]) -> None:
    steps = [Entry(name=f"step#{n}", kind=EntryKind.STEP, status=EntryStatus.SUCCESSFUL, value="1") for n in range(20)]
    for claimed in claims:
        bench.engine.journal.record(claimed, bench.executor_id, steps)


def rescue(bench: Bench) -> None:
    lost = Bench(bench.engine)
    lost.beat()
    ids = [claimed.id for claimed in claim(lost)]
    Heartbeat.objects.filter(pk=lost.executor_id).update(at=clock_to_compare(after=-31))
    Task.objects.filter(pk__in=ids).update(claimed_at=clock_to_compare(after=-31))
    assert len(bench.engine.executors.rescue()) == 20


def unread(bench: Bench) -> list[UUID]:
    ids = [claimed.id for claimed in claim(bench)]
    for pk in ids:
        bench.send(pk)
    return ids


def keyed(bench: Bench) -> list[str]:
    bench.engine.enqueues.enqueue([new(key=f"own-{n}") for n in range(20)])
    return [f"own-{n}" for n in range(20)]


def database(bench: Bench) -> PostgresDatabase:
    assert isinstance(bench.engine, PostgresEngine)
    return bench.engine.db


# Prepare, then the call whose statements are read.
CALLS: dict[str, tuple[Callable[[Bench], Any], Callable[[Bench, Any], Any]]] = {
    "claim": (claim, lambda bench, _: bench.claim(20, queues=QUEUES)),
    "claim_limited": (
        lambda bench: bench.limit("own", 5),
        lambda bench, _: bench.claim(20, queues=QUEUES, limited=["own"], max_per_queue={"own": 5}),
    ),
    "claim_isolated": (claim, lambda bench, _: bench.claim_isolated(queues=QUEUES)),
    "commit": (claim, lambda bench, claims: bench.commit(*map(outcome, claims))),
    "commit_successes": (claim, lambda bench, claims: bench.commit(*map(success, claims))),
    "commit_and_claim": (
        claim,
        lambda bench, claims: bench.engine.commit_and_claim(
            [*map(outcome, claims)], bench.claim_request(20, queues=QUEUES), should_admit=True
        ),
    ),
    "commit_children": (
        lambda bench: claim(bench, parent_id=bench.add(queue_name="own")),
        lambda bench, claims: bench.commit(*map(outcome, claims)),
    ),
    "commit_actors": (lambda bench: None, lambda bench, _: commit_actors(bench)),
    "cancel_children": (
        family,
        lambda bench, parent: bench.commit(
            outcome(parent, Status.SUCCESSFUL, has_succeeded=True, effects=Effects(cancel_children=True))
        ),
    ),
    "cancel_tree": (family, lambda bench, parent: bench.engine.tasks.cancel([parent.id], tree=True, wait=False)),
    "descendants": (family, lambda bench, parent: bench.engine.tasks.descendants([parent.id])),
    "cancel_of_many": (
        lambda bench: [bench.add(queue_name="own") for _ in range(20)],
        lambda bench, ids: bench.engine.tasks.cancel(ids, tree=True, wait=False),
    ),
    "requeue": (
        lambda bench: [bench.ended(Status.FAILED, key=f"own-{n}") for n in range(5)],
        lambda bench, ids: bench.engine.tasks.requeue(ids, wait=False),
    ),
    "delete": (lambda bench: [bench.ended() for _ in range(5)], lambda bench, ids: bench.engine.tasks.delete(ids)),
    "run_now": (lambda bench: [bench.suspended()], lambda bench, ids: bench.engine.tasks.run_now(ids, wait=False)),
    "discard": (lambda bench: [bench.ended(Status.FAILED)], lambda bench, ids: bench.engine.tasks.discard(ids)),
    "heartbeat": (claim, lambda bench, _: bench.beat()),
    "release_unknown": (claim, lambda bench, _: bench.engine.commits.release_unknown_claims(bench.executor_id, [])),
    "rescue": (lambda bench: None, lambda bench, _: rescue(bench)),
    "pending_maintenance": (claim, lambda bench, _: bench.engine.executors.pending_maintenance(bench.executor_id)),
    "wake": (lambda bench: [bench.suspended()], lambda bench, ids: bench.engine.messages.wake(ids)),
    "wake_due": (
        lambda bench: [bench.add(wake_after_seconds=-1.0) for _ in range(5)],
        lambda bench, _: bench.engine.inbox.wake_due(20),
    ),
    "sweep": (
        lambda bench: [bench.send(bench.suspended()) for _ in range(5)],
        lambda bench, _: bench.engine.messages.sweep(20),
    ),
    "count_unread": (unread, lambda bench, ids: bench.engine.inbox.count_unread(ids)),
    "read_messages": (unread, lambda bench, ids: bench.engine.messages.read_messages(ids)),
    "send": (
        claim,
        lambda bench, claims: bench.engine.messages.send([NewMessage(task_id=c.id, body="1") for c in claims]),
    ),
    "send_once": (
        claim,
        lambda bench, claims: bench.engine.messages.send(
            [NewMessage(task_id=c.id, body="1", dedupe_key="k") for c in claims] * 2
        ),
    ),
    "enqueue": (keyed, lambda bench, keys: bench.engine.enqueues.enqueue([new(key=key) for key in [*keys, "free"]])),
    "enqueue_once": (
        lambda bench: bench.engine.enqueues.enqueue_once([new(idempotency_key="a")]),
        lambda bench, _: bench.engine.enqueues.enqueue_once([new(idempotency_key="a"), new(idempotency_key="b")]),
    ),
    "enqueue_limited": (
        lambda bench: None,
        lambda bench, _: bench.engine.enqueues.enqueue([new(concurrency_key="slots:own", concurrency_limit=1)] ),
    ),
    "admit": (
        lambda bench: bench.engine.enqueues.enqueue(
            [new(concurrency_key="slots:own", concurrency_limit=1) for _ in range(5)]
        ),
        lambda bench, _: bench.engine.admissions.admit(),
    ),
    "key_holders": (
        keyed,
        lambda bench, keys: database(bench).query_prepared("key_holders", keys=[*keys, "unknown"]),
    ),
    "find_keys": (keyed, lambda bench, keys: bench.engine.messages.find_keys({*keys, "unknown"})),
    "find_seen": (keyed, lambda bench, keys: bench.engine.messages.find_seen({("own-1", "seen"), ("unknown", "x")})),
    "prune": (
        lambda bench: None,
        lambda bench, _: bench.with_options(retention={"SUCCESSFUL": 0.0, "FAILED": 0.0}).engine.tasks.prune(20),
    ),
    "has_isolated": (claim, lambda bench, _: bench.engine.claims.has_isolated(QUEUES)),
    "queues_in_use": (claim, lambda bench, _: bench.engine.queues.queues_in_use()),
    "queue_latency": (claim, lambda bench, _: bench.engine.queues.queue_latency()),
    "has_no_work_left": (claim, lambda bench, _: bench.engine.queues.has_no_work_left(QUEUES, 1.0)),
    "record": (claim, record),
    "read_journal": (workflows, lambda bench, ids: bench.engine.journal.read(ids[0])),
    "commit_workflows": (claim, commit_workflows),
    "cancel_workflows": (workflows, lambda bench, ids: bench.engine.tasks.cancel(ids, wait=False)),
    "requeue_family": (failed_child, lambda bench, child: bench.engine.tasks.requeue([child], wait=False)),
    "give": (workflows, lambda bench, ids: bench.engine.journal.give(ids[0], "charge", "1")),
    "retry": (workflows, lambda bench, ids: bench.engine.journal.retry(ids[0], "charge")),
    "rewind": (workflows, lambda bench, ids: bench.engine.journal.rewind(ids[0], "charge")),
    "delete_workflows": (
        lambda bench: workflows(bench, Status.FAILED),
        lambda bench, ids: bench.engine.tasks.delete(ids),
    ),
    "prune_large_journals": (
        lambda bench: None,
        lambda bench, _: bench.with_options(retention={"SUCCESSFUL": 0.0}).engine.tasks.prune_messages(20),
    ),
    "schedules": (lambda bench: None, lambda bench, _: bench.engine.ticks.fire()),
}  # fmt: skip


def test_statements_beside_one_shape_of_tasks_read_few_rows(bench: Bench) -> None:
    faults = []
    for name, (prepare, call) in CALLS.items():
        with transaction.atomic():
            prepared = prepare(bench)
            reader = Reader(MAX_ROWS, BIG)
            with connection.execute_wrapper(reader):
                call(bench, prepared)
            transaction.set_rollback(True)
        faults += [f"{name}: {fault}" for fault in reader.faults]
    assert not faults, "\n\n".join(faults)
