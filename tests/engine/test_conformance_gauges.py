"""gauges, on every engine."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobqueue.engine.portable import queues as portable_queues
from jobqueue.engine.postgres import queues as postgres_queues
from jobqueue.metrics import Depth, Gauges
from jobqueue.records import Status
from tests.engine.bench import Bench, new
from tests.factories import ExecutorFactory, TaskFactory, ago

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

STATES = ("scheduled", "running", "suspended", "successful", "failed", "cancelled")


def task(bench: Bench, queue_name: str, state: str = "", **changes: object) -> None:
    traits = {state: True} if state else {}
    TaskFactory(using=bench.engine.database, backend=bench.engine.alias, queue_name=queue_name, **traits, **changes)


def executor(bench: Bench, **changes: object) -> None:
    ExecutorFactory(using=bench.engine.database, **{"backend": bench.engine.alias, **changes})


def depths(bench: Bench) -> dict[tuple[str, str], tuple[int, bool]]:
    found = bench.engine.gauges().depths
    assert len(found) == len({(depth.queue_name, depth.status) for depth in found})
    return {(depth.queue_name, depth.status): (depth.number, depth.is_estimate) for depth in found}


def test_gauges_of_empty_database_are_zero(bench: Bench) -> None:
    assert bench.engine.gauges() == Gauges(
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
        for status in ("READY", "SCHEDULED", "RUNNING", "SUSPENDED")
    }
    assert bench.engine.gauges().in_flight == 3


def test_depth_above_counting_limit_is_an_estimate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "MAX_COUNTED", 3)
    bench.engine.enqueue([new() for _ in range(3)] + [new(queue_name="deep") for _ in range(5)])

    found = depths(bench)

    assert found["default", "READY"] == (3, False)
    number, is_estimate = found["deep", "READY"]
    assert is_estimate
    assert number >= 4


def test_number_of_running_tasks_above_limit_is_an_estimate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "RUNNING_READ", 2)
    for _ in range(3):
        task(bench, "a", "running")

    assert bench.engine.gauges().depths == [Depth(queue_name="a", status=Status.RUNNING, number=2, is_estimate=True)]


def test_gauges_show_oldest_ready_task_of_each_queue(bench: Bench) -> None:
    for queue_name, seconds in (("a", 100), ("a", 300), ("b", 20)):
        bench.set(bench.add(queue_name=queue_name), rank=ago(seconds))
    bench.running()

    oldest = bench.engine.gauges().oldest_ready_seconds

    assert oldest == {"a": pytest.approx(300, abs=10), "b": pytest.approx(20, abs=10)}


def test_active_workers_are_limited_by_slots(bench: Bench) -> None:
    busy, idle, lost = uuid4(), uuid4(), uuid4()
    executor(bench, id=busy, slots=2)
    executor(bench, id=idle, slots=4)
    executor(bench, id=lost, slots=8, heartbeat=ago(60))
    executor(bench, id=uuid4(), slots=16, state="STOPPED")
    for holder in (busy, busy, busy, lost):
        task(bench, "a", "running", executor_id=holder)

    found = bench.engine.gauges()

    assert (found.executors, found.slots, found.active_workers, found.in_flight) == (2, 6, 2, 4)
