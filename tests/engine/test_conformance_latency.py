"""queue_latency, on every engine."""

from __future__ import annotations

import pytest

from jobqueue.engine.clock import now_plus
from jobqueue.models import Queue
from jobqueue.records import QueueLatency
from tests.engine.bench import Bench
from tests.factories import ExecutorFactory, ago

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def waited(bench: Bench, seconds: float, *, priority: int = 0, **changes: object) -> None:
    pk = bench.add(priority=priority, **changes)
    bench.set(pk, rank=ago(seconds + priority * bench.engine.options.aging))


def executor(bench: Bench, **changes: object) -> None:
    ExecutorFactory(using=bench.engine.database, **{"backend": bench.engine.alias, **changes})


def only(bench: Bench) -> QueueLatency:
    (found,) = bench.engine.queue_latency()
    return found


def test_empty_queue_is_not_listed(bench: Bench) -> None:
    bench.running()
    bench.add(wake_after_seconds=60.0)

    assert bench.engine.queue_latency() == []


def test_latency_is_that_of_oldest_task_of_any_priority(bench: Bench) -> None:
    waited(bench, 100, queue_name="b")
    waited(bench, 400, queue_name="a", priority=-3)
    waited(bench, 30, queue_name="a", priority=5)

    found = bench.engine.queue_latency()

    assert [queue.queue_name for queue in found] == ["a", "b"]
    assert [queue.latency_seconds for queue in found] == pytest.approx([400, 100], abs=20)


@pytest.mark.parametrize(
    ("changes", "is_served"),
    [
        ({}, True),
        ({"queues": ["default"]}, True),
        ({"queues": ["mail", "default"]}, True),
        ({"queues": ["mail"]}, False),
        ({"lost": True}, False),
        ({"state": "DRAINING"}, False),
        ({"state": "STOPPED"}, False),
        ({"backend": "other"}, False),
    ],
)
def test_queue_is_served_by_live_executor_that_claims_from_it(
    bench: Bench, changes: dict[str, object], is_served: bool
) -> None:
    bench.add()
    executor(bench, **changes)

    assert only(bench).is_served is is_served


@pytest.mark.parametrize(
    ("changes", "is_paused"),
    [
        ({"paused_at": now_plus()}, True),
        ({"paused_at": now_plus(), "resume_at": now_plus(60)}, True),
        ({"paused_at": now_plus(-60), "resume_at": now_plus(-1)}, False),
        ({"paused_at": None}, False),
        ({"paused_at": now_plus(), "name": "mail"}, False),
    ],
)
def test_paused_queue_is_reported(bench: Bench, changes: dict[str, object], is_paused: bool) -> None:
    bench.add()
    rows = Queue.objects.using(bench.engine.database)
    rows.create(backend=bench.engine.alias, **{"name": "default", **changes})

    assert only(bench).is_paused is is_paused


@pytest.mark.parametrize("state", ["RUNNING", "PAUSED", "DRAINING", "lost", "STOPPED", "none"])
def test_due_and_lost_tasks_count_while_no_executor_is_alive(bench: Bench, state: str) -> None:
    """Without an executor, due tasks do not become READY. Their queue must not look empty."""
    for queue_name, seconds in (("due", 120.0), ("due", 60.0), ("held", 300.0), ("tomorrow", -60.0)):
        pk = bench.add(queue_name=queue_name, wake_after_seconds=1000.0)
        bench.set(pk, wake_at=ago(seconds))
        if queue_name == "held":
            bench.set(pk, status="RUNNING", wake_at=None, executor_id=bench.executor_id, claimed_at=ago(seconds))
    if state != "none":
        executor(bench, **{"lost": True} if state == "lost" else {"state": state})
    bench.pause("held")

    found = {queue.queue_name: queue for queue in bench.engine.queue_latency()}

    if state in ("RUNNING", "PAUSED", "DRAINING"):
        assert found == {}
        return
    assert list(found) == ["due", "held"]
    assert [queue.is_served for queue in found.values()] == [False, False]
    assert [queue.is_paused for queue in found.values()] == [False, True]
    assert found["due"].latency_seconds == pytest.approx(120, abs=20)


def test_latency_of_ready_tasks_ignores_due_tasks(bench: Bench) -> None:
    waited(bench, 30)
    bench.set(bench.add(wake_after_seconds=1000.0), wake_at=ago(500))

    assert only(bench).latency_seconds == pytest.approx(30, abs=20)
