"""pending_maintenance, on every engine: executors skip the work that it does not report."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import asdict

from jobqueue.models import Executor
from jobqueue.records import Command, PendingWork
from tests.engine.bench import Bench
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

NOTHING = PendingWork(None, has_running=False, has_messages=False, has_command=False, has_isolated=False)


def running(bench: Bench) -> None:
    bench.running()


def messages(bench: Bench) -> None:
    bench.send(bench.suspended())


def command(bench: Bench) -> None:
    bench.beat()
    bench.engine.command([bench.executor_id], Command.STOP)


def isolated(bench: Bench) -> None:
    bench.set(bench.add(), executor_losses=2)


@pytest.mark.parametrize("begin", [running, messages, command, isolated])
def test_pending_maintenance_reports_each_kind_of_work(bench: Bench, begin: Callable[[Bench], None]) -> None:
    begin(bench)

    assert asdict(bench.engine.pending_maintenance(bench.executor_id))[f"has_{begin.__name__}"]


@pytest.mark.parametrize("left", [-60.0, 60.0])
def test_pending_maintenance_tells_seconds_to_next_wake_at(bench: Bench, left: float) -> None:
    assert bench.engine.pending_maintenance(bench.executor_id).next_wake_seconds is None
    bench.add(wake_after_seconds=86_400.0)
    bench.add(wake_after_seconds=100.0)
    bench.time_passes(100.0 - left)

    seconds = bench.engine.pending_maintenance(bench.executor_id).next_wake_seconds
    assert seconds == pytest.approx(left, abs=5)


@pytest.mark.parametrize("begin", [running, messages, command, isolated])
def test_pending_maintenance_reports_no_other_kind(begin: Callable[[Bench], None]) -> None:
    bench = make_bench("postgresql")
    assert bench.engine.pending_maintenance(bench.executor_id) == NOTHING
    begin(bench)

    due = asdict(bench.engine.pending_maintenance(bench.executor_id))
    assert {name for name, value in due.items() if value} == {f"has_{begin.__name__}"}


def test_pending_maintenance_ignores_work_of_others() -> None:
    bench = make_bench("postgresql")
    bench.send(bench.add())  # READY tasks need no wake-up
    bench.set(bench.suspended(), status="FAILED", executor_losses=2)
    bench.set(bench.suspended(), backend="another", wake_at=bench.engine.now())
    bench.set(bench.add(), backend="another", executor_losses=2)
    bench.add()
    bench.engine.command(list(Executor.objects.values_list("pk", flat=True)), Command.STOP)
    bench.executor_id = make_bench("postgresql").executor_id

    assert bench.engine.pending_maintenance(bench.executor_id) == NOTHING
