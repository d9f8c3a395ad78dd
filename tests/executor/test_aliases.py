"""Functions that were renamed or moved: `@task(aliases=[...])`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobqueue import Actor, Concurrency, Done, PollContext, WorkflowContext, task, workflow
from jobqueue.declarations import function, registry
from jobqueue.engine import engine_for
from jobqueue.models import Executor, Task
from jobqueue.testing import WorkflowStub
from jobqueue.values.states import LimitKind, Status
from tests.cli.commands import jobqueue
from tests.executor.harness import Burst, Start, on_both_databases, on_postgresql, row_of
from tests.factories import ScheduleFactory, TaskFactory
from tests.waiting import wait_until

pytestmark = on_postgresql


@task(aliases=["old.moved"])
def moved(a: int) -> int:
    return a


@task(aliases=["old.limited"], concurrency=Concurrency(1, key="{account}"))
def limited(account: int) -> None: ...


class Counted(Actor, aliases=["old.Counted"]):
    def poll(self, context: PollContext[Any]) -> Any:
        return Done("counted")


@workflow(aliases=["old.shipped"])
def shipped(context: Any) -> str:
    return "shipped"


NEW = f"{__name__}.moved"


@on_both_databases
@pytest.mark.parametrize(
    ("name", "args", "result"), [("old.moved", [3], 3), ("old.Counted", [], "counted"), ("old.shipped", [], "shipped")]
)
def test_row_with_an_old_name_runs_the_new_function(
    burst: Burst, name: str, args: list[Any], result: Any, backend: str
) -> None:
    row = TaskFactory.create(task_type=name, args=args, backend=backend, using=backend)
    burst(backend=backend)
    done = Task.objects.using(backend).get(pk=row.pk)
    assert (done.status, done.return_value, done.task_type) == (Status.SUCCESSFUL, result, name)


def test_new_calls_have_the_new_name_and_read_old_results() -> None:
    assert row_of(moved.enqueue(1)).task_type == NEW
    old = TaskFactory.create(task_type="old.moved", args=[1])
    assert moved.get_result(str(old.pk)).task.func is moved.func


def test_unique_key_of_an_old_row_holds() -> None:
    old = TaskFactory.create(task_type="old.moved", args=[1], key="one")
    assert moved.using(key="one").enqueue(2).id == str(old.pk)


def test_limit_counts_old_and_new_rows_together() -> None:
    TaskFactory.create(task_type="old.limited", args=[7], concurrency_key="old.limited:7", concurrency_limit=1)
    new = limited.enqueue(7)
    other = limited.enqueue(8)
    engine = engine_for("default")
    engine.admissions.admit()
    assert row_of(new).concurrency_key == "old.limited:7"
    assert (row_of(new).status, row_of(other).status) == (Status.BLOCKED, Status.READY)
    assert (LimitKind.CONCURRENCY, "old.limited") in registry.declared_limits()


def test_schedule_that_names_the_old_path_runs(start: Start) -> None:
    past = engine_for("default").db.now() - timedelta(seconds=1)
    schedule = ScheduleFactory.create(task_type="old.moved", next_at=past)
    start()
    done = wait_until(lambda: Task.objects.filter(schedule=schedule, status=Status.SUCCESSFUL).first(), "the tick")
    assert (done.task_type, done.return_value) == ("old.moved", 1)


def test_executor_reports_old_names_as_known(burst: Burst) -> None:
    burst()
    assert {"old.moved", NEW} <= {*Executor.objects.get().task_types}


def test_command_line_shows_the_new_name_and_takes_the_old_one() -> None:
    row = TaskFactory.create(task_type="old.moved", args=[1])
    assert ["Renamed", "to", NEW] in [line.split() for line in jobqueue("show", row.pk).out.splitlines()]
    assert jobqueue("show", row.pk, "--json").json["renamed_to"] == NEW
    submitted = jobqueue("submit", "old.moved", "--args", "[2]").out.strip()
    assert Task.objects.get(pk=submitted).task_type == NEW


def charge(amount: int) -> int:
    return amount


def charge_card(amount: int) -> int:
    return 2 * amount


@workflow
def order(context: WorkflowContext) -> Any:
    charged = context.step(charging["now"], 5)
    context.sleep(timedelta(hours=1))
    return charged


charging: dict[str, Any] = {}


def test_workflow_that_waits_does_not_repeat_a_child_that_was_renamed(own_registry: None) -> None:
    charging["now"] = task(name="shop.charge")(charge)
    stub = WorkflowStub(order).run()
    del function.declared["shop.charge"]
    charging["now"] = task(aliases=["shop.charge"])(charge_card)

    stub.advance(timedelta(hours=1)).run()

    assert (stub.result, [*stub.journal]) == (5, ["charge", "sleep"])
