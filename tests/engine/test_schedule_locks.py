"""Schedules whose rows, tasks or keys other sessions have locked: they wait alone, and executors never wait."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from jobqueue.api.schedule_deployments import DeclaredSchedules
from jobqueue.declarations.schedules import Declaration
from jobqueue.schedules.expressions import Every
from jobqueue.values.policies import Overlap, SkipReason
from tests import tasks
from tests.engine.conftest import make_bench
from tests.engine.sessions import session
from tests.engine.test_conformance_schedules import ScheduleBench

pytestmark = pytest.mark.django_db(transaction=True)

LOCK = "SELECT id FROM jobqueue_schedule WHERE id = %s FOR UPDATE"


@pytest.fixture(params=["portable-on-postgresql", "postgresql"])
def schedules(request: pytest.FixtureRequest) -> ScheduleBench:
    return ScheduleBench(make_bench(request.param))


@pytest.fixture
def fast_schedules() -> ScheduleBench:
    return ScheduleBench(make_bench("postgresql"))


def test_locked_schedule_delays_no_other(schedules: ScheduleBench) -> None:
    locked = schedules.add("locked")
    schedules.add("other")
    schedules.pass_ticks()
    with session() as other:
        other.run(LOCK, locked.pk)
        assert schedules.fire() == (1, 0)
        assert schedules.fire() == (0, 0)

    assert schedules.fire() == (1, 0)


def test_key_of_an_open_transaction_delays_no_schedule(fast_schedules: ScheduleBench) -> None:
    keyed = fast_schedules.add("keyed", task={"key": "k"})
    others = [fast_schedules.add("other"), fast_schedules.add("other-key", task={"key": "l"})]
    fast_schedules.pass_ticks()
    with session() as other:
        task = {"id": str(uuid4()), "task_type": "tests.noop", "key": "k"}
        alias = fast_schedules.bench.engine.alias
        other.run("SELECT jobqueue_enqueue(%s, 60.0::float8, %s::json)", alias, json.dumps([task]))
        assert fast_schedules.fire() == (2, 1)

    assert fast_schedules.history(keyed) == [(1, SkipReason.KEY)]
    assert [fast_schedules.history(row) for row in others] == [[(1, "")]] * 2


def test_tick_waits_until_the_task_that_it_cancels_is_not_locked(schedules: ScheduleBench) -> None:
    """An executor has claimed the task, and its transaction has not ended."""
    row, other_row = schedules.add(overlap=Overlap.CANCEL_RUNNING), schedules.add("other")
    schedules.pass_ticks()
    schedules.fire()
    (first,) = schedules.live(row)
    schedules.end_tasks(other_row)
    schedules.pass_ticks()
    with session() as other:
        other.lock(first)
        assert schedules.fire() == (1, 0)
        assert schedules.bench.engine.ticks.fire().count == 0

    assert schedules.fire() == (1, 0)
    assert len(schedules.live(row)) == 1
    assert first not in schedules.live(row)


def test_locked_schedule_defers_a_deploy(fast_schedules: ScheduleBench, caplog: pytest.LogCaptureFixture) -> None:
    row = fast_schedules.add("report", declared_at="shop/tasks.py:1")
    declaration = Declaration("report", tasks.echo, Every(hours=2), "shop/tasks.py:1")
    code, engine = DeclaredSchedules({"report": declaration}, "digest"), fast_schedules.bench.engine
    with session() as other, caplog.at_level("INFO", "jobqueue"):
        other.run(LOCK, row.pk)
        assert not code.synchronize(engine)
    assert "schedules.deferred error=" in caplog.text

    assert code.synchronize(engine)
    assert fast_schedules.row(row).expression == "@every 7200"
