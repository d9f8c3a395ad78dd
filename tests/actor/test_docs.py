"""Run the examples of docs/how-to.md as printed, with their TestCases."""

from __future__ import annotations

import re
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobqueue import testing
from jobqueue.api.schedules import create
from jobqueue.declarations.checks import check_schedules
from jobqueue.declarations.schedules import Declaration, declarations
from jobqueue.engine import engine_for
from jobqueue.models import Schedule, Task
from jobqueue.schedules.expressions import Every
from tests.tasks import add

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to.md"


def example(heading: str, blocks: int = 1) -> str:
    """Return the first Python blocks of a section."""
    section = HOW_TO.read_text(encoding="utf-8").partition(f"\n## {heading}")[2].partition("\n## ")[0]
    snippets = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(snippets) >= blocks
    return "\n".join(snippets[:blocks])


exec(compile(example("Write an actor", 2), HOW_TO, "exec"))
exec(compile(example("Test actors and tasks"), HOW_TO, "exec"))


def test_how_to_examples_are_collected() -> None:
    namespace: dict[str, Any] = globals()
    assert "test_ends_without_a_decision_after_three_days" in dir(namespace["AlbumTests"])
    assert "test_reminds_after_a_day" in dir(namespace["PaymentTests"])


def run_example(heading: str, blocks: int) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(compile(example(heading, blocks), HOW_TO, "exec"), namespace)
    return namespace


def periodic_example(number: int) -> str:
    """Return one block of the section on schedules, counted from 1."""
    before, after = (example("Run a task periodically", count) for count in (number - 1, number))
    return after.removeprefix(before)


@pytest.mark.usefixtures("own_schedules")
def test_how_to_schedules_are_declared_without_a_mistake() -> None:
    pause = periodic_example(3)
    source = example("Run a task periodically", 6).replace(pause, "")
    exec(compile(source, HOW_TO, "exec"), {"__name__": "shop.tasks"})

    assert check_schedules() == []
    names = {declaration.name for declaration in declarations()}
    assert {"shop.tasks.morning_report", "shop.tasks.Cleanup", "warm-home", "first-monday", "advent"} <= names


@pytest.mark.django_db
@pytest.mark.usefixtures("own_schedules")
def test_how_to_pauses_resumes_and_runs_a_schedule() -> None:
    create(Declaration("warm-home", add, Every(minutes=5), "", args=[1]))

    exec(compile(f"from datetime import timedelta\n{periodic_example(3)}", HOW_TO, "exec"), {})

    assert Schedule.objects.get().paused_at is None
    assert Task.objects.get().schedule_id == Schedule.objects.get().pk


@pytest.mark.django_db
@pytest.mark.usefixtures("own_schedules")
def test_how_to_tests_of_schedules_pass() -> None:
    case = run_example("Test schedules", 1)["InvoiceTests"]
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)

    assert (result.testsRun, result.errors, result.failures) == (2, [], [])


def number_ready() -> int:
    """Return how many tasks an executor may run now."""
    engine_for("default").admissions.admit()
    return Task.objects.ready().count()


@pytest.mark.django_db
def test_how_to_rate_starts_ten_tasks_a_second() -> None:
    ran = run_example("Protect an API that allows ten calls a second", 1)
    ran["push_contact"].enqueue_many(((number,), {}) for number in range(15))
    ran["push_order"].enqueue_many(((number,), {}) for number in range(15))

    assert number_ready() == 10
    for task in Task.objects.ready():
        testing.poll_once(task)
    testing.advance(timedelta(seconds=1))
    assert number_ready() == 10
    assert len(testing.run_until_idle()) >= 10


@pytest.mark.django_db
def test_how_to_imports_run_one_at_a_time_for_each_customer() -> None:
    ran = run_example("Run one import per customer at a time", 1)
    for customer in (1, 1, 1, 2):
        ran["import_orders"].enqueue(customer, "orders.csv")

    assert number_ready() == 2
    assert [polled.status for polled in testing.run_until_idle()] == ["SUCCESSFUL"] * 4


@pytest.mark.django_db
def test_how_to_customer_with_many_tasks_lets_others_in() -> None:
    ran = run_example("Share the executors fairly between customers", 1)
    ran["resize"].enqueue_many(((1, number), {}) for number in range(100))
    ran["export"].enqueue(1)
    single = ran["resize"].enqueue(2, 1)

    assert number_ready() == 21
    assert single.id in [str(polled.id) for polled in testing.run_until_idle()[:21]]


@pytest.mark.django_db
def test_how_to_ten_calls_with_one_key_become_one_task() -> None:
    ran = run_example("Send one mail for ten changes", 1)
    for _ in range(10):
        ran["document_changed"](7)
        testing.advance(timedelta(seconds=1))
    assert testing.run_until_idle() == []
    testing.advance(timedelta(seconds=30))
    assert len(testing.run_until_idle()) == 1

    ran["document_changed"](7)
    ran["document_finished"](7)
    assert len(testing.run_until_idle()) == 1

    ran["user_signed_up"](1)
    assert len(testing.run_until_idle()) == 1
    ran["user_signed_up"](1)
    assert testing.run_until_idle() == []
    testing.advance(timedelta(days=1))
    ran["user_signed_up"](1)
    assert len(testing.run_until_idle()) == 1
