"""Schedules that code declares, and their tasks in a real executor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from jobqueue.api.schedule_deployments import MAX_START_TIME, DeclaredSchedules
from jobqueue.conf.compat import task_enqueued
from jobqueue.declarations.schedules import Declaration, schedule
from jobqueue.engine import engine_for
from jobqueue.models import Executor, Heartbeat, Schedule, ScheduleDeployment, ScheduleTick
from jobqueue.schedules.expressions import Cron, Every
from jobqueue.values.policies import MAX_COUNTED
from tests.executor import tasks
from tests.executor.harness import Start, gates, on_both_databases, on_postgresql
from tests.factories import ExecutorFactory
from tests.waiting import wait_until

pytestmark = [on_postgresql, pytest.mark.usefixtures("own_schedules")]


def synchronize() -> bool:
    """Do what an executor with these declarations does when it starts."""
    return DeclaredSchedules.of("default").synchronize(engine_for("default"))


def names() -> list[str]:
    return [*Schedule.objects.active().order_by("name").values_list("name", flat=True)]


@on_both_databases
def test_executor_runs_each_tick_of_a_schedule_once(start: Start, backend: str) -> None:
    schedule("each-second", tasks.note_tick, Every(seconds=1), args=["ticks"], overlap="allow", backend=backend)
    start(backend=backend)
    wait_until(lambda: len(gates["ticks"].arrived) >= 3, "three ticks")

    seen = gates["ticks"].arrived[:3]
    assert {name for name, _ in seen} == {"each-second"}
    first = seen[0][1]
    assert [tick for _, tick in seen] == [first + timedelta(seconds=n) for n in range(3)]
    assert first.microsecond == 0


def test_tick_starts_within_a_second_of_its_moment(start: Start) -> None:
    schedule("each-second", tasks.note_tick, Every(seconds=1), args=["ticks"], overlap="allow")
    start()
    wait_until(lambda: len(gates["ticks"].arrived) >= 3, "three ticks")

    late = [tick.recorded_at - tick.tick_at for tick in ScheduleTick.objects.order_by("tick_at")[:3]]
    assert max(late) < timedelta(seconds=1)


@pytest.mark.alone
def test_schedule_that_missed_a_week_of_seconds_delays_no_other(start: Start) -> None:
    missed = [f"missed-{number}" for number in range(10)]
    for name in missed:
        schedule(name, tasks.note_tick, Cron("* * * * * *", "Europe/Berlin"), args=["missed"])
    schedule("each-second", tasks.note_tick, Every(seconds=1), args=["ticks"], overlap="allow")
    synchronize()
    week_ago = timezone.now().replace(microsecond=0) - timedelta(days=7)
    Schedule.objects.filter(name__in=missed).update(next_at=week_ago, due_at=week_ago)
    start()
    wait_until(lambda: len(gates["ticks"].arrived) >= 3, "three ticks")

    ticks = ScheduleTick.objects.order_by("tick_at")
    late = [tick.recorded_at - tick.tick_at for tick in ticks.filter(schedule__name="each-second")[:3]]
    assert max(late) < timedelta(seconds=1)
    skipped = ticks.filter(schedule__name__in=missed, reason="missed")
    assert {*skipped.values_list("count", flat=True)} == {MAX_COUNTED}
    assert min(tick.last_at - tick.tick_at for tick in skipped) > timedelta(seconds=604_700)
    assert {*skipped.values_list("schedule__name", flat=True)} == {*missed}


def test_task_enqueued_is_sent_after_the_commit_of_ticks(start: Start) -> None:
    sent: list[tuple[UUID | None, str, bool]] = []

    def receiver(task_result: Any, **_: Any) -> None:
        tick = ScheduleTick.objects.get(task_id=task_result.id)
        is_after = tick.tick_at < task_result.enqueued_at < tick.recorded_at
        sent.append((tick.task_id, task_result.task.name, is_after and task_result.args == ["ticks"]))

    schedule("each-second", tasks.note_tick, Every(seconds=1), args=["ticks"], overlap="allow")
    task_enqueued.connect(receiver)
    try:
        start()
        wait_until(lambda: sent, "a signal")
    finally:
        task_enqueued.disconnect(receiver)

    assert {(name, is_right) for _, name, is_right in sent} == {("note_tick", True)}
    assert len({pk for pk, _, _ in sent}) == len(sent)


def test_executor_writes_the_names_of_its_tasks(start: Start) -> None:
    start()

    names = Executor.objects.get().task_types
    assert tasks.note_tick.task_type in names
    assert names == sorted(names)


def test_declared_schedule_becomes_a_row_and_a_removed_one_is_retired(
    own_schedules: list[Declaration],
) -> None:
    schedule("report", tasks.add, Cron("0 8 * * 1-5", timezone="Europe/Berlin"), args=[1], queue_name="reports")
    schedule("cleanup", tasks.add, Cron("@daily", timezone="UTC"), kwargs={"a": 1})
    assert synchronize()
    assert not synchronize()

    row = Schedule.objects.get(name="report")
    assert (row.expression, row.timezone, row.new_task["queue_name"]) == ("0 8 * * 1-5", "Europe/Berlin", "reports")
    assert row.declared_at.startswith("tests/executor/test_schedules.py:")
    assert names() == ["cleanup", "report"]
    del own_schedules[0]
    assert synchronize()
    assert names() == ["cleanup"]
    assert Schedule.objects.get(name="report").retired_at is not None


def test_old_code_changes_nothing_while_new_code_is_alive(own_schedules: list[Declaration]) -> None:
    schedule("old", tasks.add, Every(hours=1), args=[1])
    old = DeclaredSchedules.of("default")
    assert old.synchronize(engine_for("default"))
    own_schedules.clear()
    schedule("new", tasks.add, Every(hours=1), args=[1])
    new = DeclaredSchedules.of("default")
    assert new.synchronize(engine_for("default"))
    now = engine_for("default").db.now()
    executor = ExecutorFactory.create(versions={"schedules": new.digest}, heartbeat=now)

    assert not old.synchronize(engine_for("default"))
    assert names() == ["new"]
    Heartbeat.objects.filter(pk=executor.pk).update(at=now - timedelta(hours=1))
    assert old.synchronize(engine_for("default")), "a deploy went back to the old code"
    assert names() == ["old"]


def test_old_code_waits_for_executors_of_code_that_migrate_has_applied(own_schedules: list[Declaration]) -> None:
    engine = engine_for("default")
    schedule("old", tasks.add, Every(hours=1), args=[1])
    old = DeclaredSchedules.of("default")
    assert old.synchronize(engine)
    own_schedules.clear()
    schedule("new", tasks.add, Every(hours=1), args=[1])
    assert DeclaredSchedules.of("default").synchronize(engine)

    assert not old.synchronize(engine)
    ScheduleDeployment.objects.update(applied_at=engine.db.now() - 2 * MAX_START_TIME)
    assert old.synchronize(engine), "the deploy was given up"


def test_first_of_two_schedules_of_one_name_runs() -> None:
    schedule("report", tasks.add, Every(hours=1), args=[1])
    schedule("report", tasks.add, Every(hours=2), args=[1])
    schedule("wrong", tasks.add, Cron("61 * * * *"), args=[1])

    synchronize()
    assert Schedule.objects.get().expression == "@every 3600"
