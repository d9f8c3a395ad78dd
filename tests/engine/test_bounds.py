"""Each verb of the loop does ten times as much as its bound allows, in a table that is one family."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from jobqueue.models import CounterDelta, InboxMessage, Task
from jobqueue.values.records import Effects, NewMessage
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.factories import ExecutorFactory, TaskFactory, ago

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

CHILDREN = 20_000
LIMIT = "20s"  # of a statement of an executor with the default HEARTBEAT_TIMEOUT
FILL = """
INSERT INTO jobqueue_task
SELECT copy.*
FROM jobqueue_task AS task CROSS JOIN generate_series(1, %(count)s) AS n
CROSS JOIN LATERAL jsonb_populate_record(task, jsonb_build_object(
    'id', md5(n || clock_timestamp()::text), 'parent_id', task.id, 'status', %(status)s::text,
    'wake_at', %(wake_at)s::text, 'finished_at', %(finished_at)s::text, 'executor_id', %(executor_id)s::text,
    'claimed_at', %(claimed_at)s::text, 'claim_number', 1
)) AS copy
WHERE task.id = %(parent)s
"""


@pytest.fixture
def bench() -> Bench:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = %s", [LIMIT])
    return make_bench("postgresql")


@pytest.fixture
def parent() -> UUID:
    return TaskFactory.create(suspended=True, queue_name="unserved").pk


def fill(parent: UUID, status: str, count: int = CHILDREN, **columns: object) -> None:
    values: dict[str, Any] = dict.fromkeys(("wake_at", "finished_at", "executor_id", "claimed_at"))
    values |= {"parent": parent, "status": status, "count": count, **columns}
    with connection.cursor() as cursor:
        cursor.execute(FILL, values)
        cursor.execute("ANALYZE jobqueue_task")


def test_ends_of_ten_thousand_children_are_committed_together(bench: Bench, parent: UUID) -> None:
    fill(parent, "RUNNING", 10_000, executor_id=str(bench.executor_id), claimed_at=ago(5).isoformat())
    claims = bench.engine.claims.read_claimed(list(Task.objects.running().values_list("pk", flat=True)))

    result = bench.commit(*(outcome(claimed, Status.SUCCESSFUL) for claimed in claims))

    assert (len(result.done), InboxMessage.objects.filter(task_id=parent).count()) == (10_000, 10_000)


def test_children_of_a_huge_family_are_cancelled_in_parts(bench: Bench, parent: UUID) -> None:
    fill(parent, "SCHEDULED", wake_at=ago(-3600).isoformat())
    Task.objects.filter(pk=parent).update(status="RUNNING", executor_id=bench.executor_id, claimed_at=ago(1))
    (claimed,) = bench.engine.claims.read_claimed([parent])
    end = outcome(claimed, Status.SUCCESSFUL, has_succeeded=True, effects=Effects(cancel_children=True))

    for _ in range(CHILDREN // 5000):
        assert bench.engine.commits.cancel_children(end, bench.executor_id, 5000) == 5000

    assert Task.objects.filter(parent_id=parent, status="CANCELLED").count() == CHILDREN


def test_poll_that_spawns_sends_and_consumes_ten_thousand(bench: Bench, parent: UUID) -> None:
    fill(parent, "SUSPENDED", 10_000)
    children = list(Task.objects.filter(parent_id=parent).values_list("pk", flat=True))
    bench.engine.messages.send([NewMessage(task_id=parent, body="1") for _ in range(10_000)])
    Task.objects.filter(pk=parent).update(status="RUNNING", executor_id=bench.executor_id, claimed_at=ago(1))
    (claimed,) = bench.engine.claims.read_claimed([parent])
    unread = bench.engine.messages.read_messages([parent], 10_000)[parent]
    effects = Effects(
        consumed=[message.id for message in unread],
        spawn=[new(parent_id=parent) for _ in range(10_000)],
        send=[NewMessage(task_id=pk, body="1", sender_id=parent) for pk in children],
    )

    result = bench.commit(outcome(claimed, Status.SUSPENDED, has_succeeded=True, effects=effects))

    assert (len(unread), result.done) == (10_000, {parent: Status.SUSPENDED})


def test_maintenance_does_ten_times_its_bound(bench: Bench, parent: UUID) -> None:
    engine = bench.engine
    fill(parent, "SCHEDULED", 10_000, wake_at=ago(5).isoformat())
    assert engine.inbox.wake_due(10_000) == 10_000

    fill(parent, "SUSPENDED", 10_000)
    rows = Task.objects.suspended().filter(parent_id=parent).values_list("pk", flat=True)
    engine.messages.send([NewMessage(task_id=pk, body="1") for pk in rows])
    assert engine.messages.sweep(10_000) == 10_000

    lost = ExecutorFactory.create(heartbeat=ago(3600))
    fill(parent, "RUNNING", 1000, executor_id=str(lost.pk), claimed_at=ago(60).isoformat())
    assert len(engine.executors.rescue(1000)) == 1000

    fill(parent, "RUNNING", 1000, executor_id=str(bench.executor_id), claimed_at=ago(60).isoformat())
    assert engine.commits.release_unknown_claims(bench.executor_id, ()) == 1000
    assert len(bench.claim(1000, queues=["unserved"])) == 1000

    fill(parent, "SUCCESSFUL", 10_000, finished_at=ago(timedelta(days=300).total_seconds()).isoformat())
    assert engine.tasks.prune(10_000) >= 10_000

    delta = CounterDelta(backend="default", queue_name="q", task_type="t", at=ago(5), submitted=1)
    CounterDelta.objects.bulk_create([CounterDelta(**fields_of(delta)) for _ in range(100_000)], batch_size=10_000)
    assert engine.counters.aggregate_counters(100_000) == 100_000


def fields_of(delta: CounterDelta) -> dict[str, object]:
    return {"backend": delta.backend, "queue_name": "q", "task_type": str(uuid4())[:2], "at": delta.at, "submitted": 1}
