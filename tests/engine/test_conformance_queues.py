"""gauges and queue_latency, on every engine."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobqueue.engine import queues as portable_queues
from jobqueue.engine.postgres import queues as postgres_queues
from jobqueue.models import Queue
from jobqueue.models.clock import clock_to_compare
from jobqueue.values.counters import Depth, Gauges
from jobqueue.values.records import QueueLatency
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new
from tests.factories import ExecutorFactory, TaskFactory, ago

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

STATES = ("scheduled", "awaiting_code", "running", "suspended", "successful", "failed", "cancelled")


def task(bench: Bench, queue_name: str, state: str = "", **changes: object) -> None:
    traits = {state: True} if state else {}
    TaskFactory(using=bench.engine.database, backend=bench.engine.alias, queue_name=queue_name, **traits, **changes)


def executor(bench: Bench, **changes: object) -> None:
    ExecutorFactory(using=bench.engine.database, **{"backend": bench.engine.alias, **changes})


def depths(bench: Bench) -> dict[tuple[str, str], tuple[int, bool]]:
    measured = bench.engine.queues.gauges().depths
    assert len(measured) == len({(depth.queue_name, depth.status) for depth in measured})
    return {(depth.queue_name, depth.status): (depth.number, depth.is_estimate) for depth in measured}


def test_gauges_of_empty_database_are_zero(bench: Bench) -> None:
    assert bench.engine.queues.gauges() == Gauges(
        depths=[], in_flight=0, active_workers=0, slots=0, executors=0, oldest_ready_seconds={}
    )


def test_depths_by_queue_and_live_state(bench: Bench) -> None:
    for queue_name, times in (("a", 1), ("b", 2)):
        for _ in range(times):
            task(bench, queue_name)
            for state in STATES:
                task(bench, queue_name, state)
    Bench(type(bench.engine)("other", bench.engine.options)).add(queue_name="a")

    assert depths(bench) == {
        (queue_name, status): (number, False)
        for queue_name, number in (("a", 1), ("b", 2))
        for status in ("READY", "SCHEDULED", "AWAITING_CODE", "RUNNING", "SUSPENDED")
    }
    assert bench.engine.queues.gauges().in_flight == 3


def test_depth_above_counting_limit_is_an_estimate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "CAP", 3)
    bench.engine.enqueues.enqueue([new() for _ in range(3)] + [new(queue_name="deep") for _ in range(5)])

    measured = depths(bench)

    assert measured["default", "READY"] == (3, False)
    number, is_estimate = measured["deep", "READY"]
    assert is_estimate
    assert number >= 4


def test_number_of_running_tasks_above_limit_is_an_estimate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "RUNNING_CAP", 2)
    for _ in range(3):
        task(bench, "a", "running")

    assert bench.engine.queues.gauges().depths == [
        Depth(queue_name="a", status=Status.RUNNING, number=2, is_estimate=True)
    ]


def test_gauges_show_oldest_ready_task_of_each_queue(bench: Bench) -> None:
    for queue_name, seconds in (("a", 100), ("a", 300), ("b", 20)):
        bench.set(bench.add(queue_name=queue_name), rank=ago(seconds))
    bench.running()

    oldest = bench.engine.queues.gauges().oldest_ready_seconds

    assert oldest == {"a": pytest.approx(300, abs=10), "b": pytest.approx(20, abs=10)}


def test_active_workers_are_limited_by_slots(bench: Bench) -> None:
    busy, idle, lost = uuid4(), uuid4(), uuid4()
    executor(bench, id=busy, slots=2)
    executor(bench, id=idle, slots=4)
    executor(bench, id=lost, slots=8, heartbeat=ago(60))
    executor(bench, id=uuid4(), slots=16, state="STOPPED")
    for holder in (busy, busy, busy, lost):
        task(bench, "a", "running", executor_id=holder)

    gauges = bench.engine.queues.gauges()

    assert (gauges.executors, gauges.slots, gauges.active_workers, gauges.in_flight) == (2, 6, 2, 4)


def waited(bench: Bench, seconds: float, *, priority: int = 0, **changes: object) -> None:
    pk = bench.add(priority=priority, **changes)
    bench.set(pk, rank=ago(seconds + priority * bench.engine.options.aging))


def only(bench: Bench) -> QueueLatency:
    (latency,) = bench.engine.queues.queue_latency()
    return latency


def test_empty_queue_is_not_listed(bench: Bench) -> None:
    bench.running()
    bench.add(wake_after_seconds=60.0)

    assert bench.engine.queues.queue_latency() == []


def test_latency_is_that_of_oldest_task_of_any_priority(bench: Bench) -> None:
    waited(bench, 100, queue_name="b")
    waited(bench, 400, queue_name="a", priority=-3)
    waited(bench, 30, queue_name="a", priority=5)

    latencies = bench.engine.queues.queue_latency()

    assert [queue.queue_name for queue in latencies] == ["a", "b"]
    assert [queue.latency_seconds for queue in latencies] == pytest.approx([400, 100], abs=20)


@pytest.mark.parametrize(
    ("changes", "is_served"),
    [
        ({}, True),
        ({"queues": ["default"]}, True),
        ({"queues": ["mail", "default"]}, True),
        ({"queues": ["mail"]}, False),
        ({"lost": True}, False),
        ({"state": "STOPPING"}, False),
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


def test_executor_that_beats_again_is_alive(bench: Bench) -> None:
    bench.add()
    executor(bench, id=bench.executor_id, lost=True)
    bench.beat()

    assert only(bench).is_served
    assert bench.engine.queues.gauges().executors == 1


@pytest.mark.parametrize(
    ("changes", "is_paused"),
    [
        ({"paused_at": clock_to_compare()}, True),
        ({"paused_at": clock_to_compare(), "resume_at": clock_to_compare(after=60)}, True),
        ({"paused_at": clock_to_compare(after=-60), "resume_at": clock_to_compare(after=-1)}, False),
        ({"paused_at": None}, False),
        ({"paused_at": clock_to_compare(), "name": "mail"}, False),
    ],
)
def test_paused_queue_is_reported(bench: Bench, changes: dict[str, object], is_paused: bool) -> None:
    bench.add()
    rows = Queue.objects.using(bench.engine.database)
    rows.create(backend=bench.engine.alias, **{"name": "default", **changes})

    assert only(bench).is_paused is is_paused
    rows = bench.engine.db.queues.filter(name="default")
    assert any(row.is_paused_at(bench.engine.db.now()) for row in rows) is is_paused


@pytest.mark.parametrize("state", ["RUNNING", "PAUSED", "STOPPING", "lost", "STOPPED", "none"])
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

    by_queue = {queue.queue_name: queue for queue in bench.engine.queues.queue_latency()}

    if state in ("RUNNING", "PAUSED", "STOPPING"):
        assert by_queue == {}
        return
    assert list(by_queue) == ["due", "held"]
    assert [queue.is_served for queue in by_queue.values()] == [False, False]
    assert [queue.is_paused for queue in by_queue.values()] == [False, True]
    assert by_queue["due"].latency_seconds == pytest.approx(120, abs=20)


def test_latency_of_ready_tasks_ignores_due_tasks(bench: Bench) -> None:
    waited(bench, 30)
    bench.set(bench.add(wake_after_seconds=1000.0), wake_at=ago(500))

    assert only(bench).latency_seconds == pytest.approx(30, abs=20)
