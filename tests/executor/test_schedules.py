"""Schedules that code declares, and their tasks in a real executor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from jobqueue import declared_schedules as declarations
from jobqueue.api.schedules import DeclaredSchedules
from jobqueue.checks import check_schedules
from jobqueue.compat import task_enqueued
from jobqueue.declared_schedules import schedule
from jobqueue.engine import engine_for
from jobqueue.models import Executor, Schedule, ScheduleTick
from jobqueue.schedules.expressions import Cron, Every
from tests.executor import tasks
from tests.executor.harness import Start, gates, on_both_databases, on_postgresql
from tests.waiting import wait_until

pytestmark = on_postgresql


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> list[declarations.Declaration]:
    """Start without declarations."""
    empty: list[declarations.Declaration] = []
    monkeypatch.setattr(declarations, "declared", empty)
    monkeypatch.setattr("jobqueue.api.schedules.declared", empty)
    return empty


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


def test_declared_schedule_becomes_a_row_and_a_removed_one_is_retired(
    declared: list[declarations.Declaration],
) -> None:
    schedule("report", tasks.add, Cron("0 8 * * 1-5", timezone="Europe/Berlin"), args=[1], queue_name="reports")
    schedule("cleanup", tasks.add, Cron("@daily", timezone="UTC"), kwargs={"a": 1})
    assert synchronize()
    assert not synchronize()

    row = Schedule.objects.get(name="report")
    assert (row.expression, row.timezone, row.new_task["queue_name"]) == ("0 8 * * 1-5", "Europe/Berlin", "reports")
    assert row.declared_at.startswith("tests/executor/test_schedules.py:")
    assert names() == ["cleanup", "report"]
    del declared[0]
    assert synchronize()
    assert names() == ["cleanup"]
    assert Schedule.objects.get(name="report").retired_at is not None


def test_old_code_changes_nothing_while_new_code_is_alive(declared: list[declarations.Declaration]) -> None:
    schedule("old", tasks.add, Every(hours=1), args=[1])
    old = DeclaredSchedules.of("default")
    assert old.synchronize(engine_for("default"))
    declared.clear()
    schedule("new", tasks.add, Every(hours=1), args=[1])
    new = DeclaredSchedules.of("default")
    assert new.synchronize(engine_for("default"))
    now = engine_for("default").now()
    executor = Executor.objects.create(
        backend="default",
        name="new",
        host="h",
        pid=1,
        versions={"schedules": new.digest},
        started_at=now,
        heartbeat=now,
    )

    assert not old.synchronize(engine_for("default"))
    assert names() == ["new"]
    Executor.objects.filter(pk=executor.pk).update(heartbeat=now - timedelta(hours=1))
    assert old.synchronize(engine_for("default")), "a deploy went back to the old code"
    assert names() == ["old"]


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda: schedule("a", tasks.add, Cron("61 * * * *"), args=[1]), "the minute of '61 * * * *' is not valid"),
        (lambda: schedule("a", tasks.add, Cron("0 0 * * *", timezone="Mars"), args=[1]), "'Mars' is not the name"),
        (lambda: schedule("a", tasks.add, Every(minutes=5)), "missing"),
        (lambda: schedule("a", tasks.add, Every(minutes=5), args=[object()]), "add()"),
        (lambda: schedule("a", tasks.add, Every(minutes=5), args=[1], overlpa="skip"), "takes no option 'overlpa'"),
        (lambda: schedule("a", tasks.add, Every(minutes=5), args=[1], overlap="maybe"), "overlap must be one of"),
        (lambda: schedule("a", tasks.add, Every(minutes=5), args=[1], catch_up="all"), "needs overlap='allow'"),
        (lambda: schedule("a", tasks.add, Every(minutes=5), args=[1], jitter=-1), "jitter must be seconds"),
        (lambda: schedule("a", tasks.add, Every(minutes=5), args=[1], priority=1000), "priority"),
        (
            lambda: schedule("a", cast(Any, tasks.add.func), Every(minutes=5), args=[1]),
            "must be declared with jobqueue.task",
        ),
        (lambda: schedule("", tasks.add, Every(minutes=5), args=[1]), "its name must be a text"),
        (lambda: schedule("a", tasks.add, cast(Any, "0 8 * * *"), args=[1]), "it needs a Cron or an Every"),
    ],
)
def test_mistake_in_a_declaration_is_a_check_with_file_and_line(declare: Callable[[], Any], problem: str) -> None:
    declare()

    (message,) = check_schedules()
    assert (message.id, problem in message.msg) == ("jobqueue.E011", True), message.msg
    assert "tests/executor/test_schedules.py:" in message.msg
    synchronize()
    assert names() == []


def test_all_mistakes_of_a_declaration_are_found_at_once() -> None:
    schedule(
        "",
        tasks.add,
        Cron("61 * * * *", timezone="Mars"),
        overlap="maybe",
        max_catch_up=0,
        catch_up_window=timedelta(days=9999),
        starts_at=datetime(2026, 1, 2, tzinfo=UTC),
        ends_at=datetime(2026, 1, 1, tzinfo=UTC),
        priority=1000,
        timeout=-1,
    )

    assert [problem.field for problem in declarations.declared[0].problems()] == [
        "name", "expression", "timezone", "overlap", "max_catch_up", "catch_up_window", "ends_at", "priority",
        "timeout", "args",
    ]  # fmt: skip


def test_two_schedules_of_one_name_are_an_error_and_the_first_one_runs() -> None:
    schedule("report", tasks.add, Every(hours=1), args=[1])
    schedule("report", tasks.add, Every(hours=2), args=[1])

    (message,) = check_schedules()
    assert "is declared twice: in tests/executor/test_schedules.py:" in message.msg
    synchronize()
    assert Schedule.objects.get().expression == "@every 3600"
