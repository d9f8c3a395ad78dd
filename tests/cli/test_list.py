"""manage.py jobqueue list: the admin's filters and search on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.commands import BOTH, jobqueue
from tests.factories import ExecutorFactory, ScheduleFactory, ago, error

pytestmark = BOTH


@pytest.fixture
def listed(backend):
    def run(*words: object) -> list[str]:
        return [task["id"] for task in jobqueue("list", "--backend", backend, *words, "--json").json["tasks"]]

    return run


def ids(*rows: Any) -> list[str]:
    return [str(row.pk) for row in rows]


def test_list_shows_the_newest_and_names_the_number_left_off(backend, make) -> None:
    made = [make(key=f"order-{n}") for n in range(5)]
    result = jobqueue("list", "--backend", backend, "-n", 2)
    assert [line.split()[0] for line in result.out.splitlines()] == ["ID", *ids(made[4], made[3])]
    assert result.err == "2 tasks, 3 more not shown: raise -n.\n"
    json = jobqueue("list", "--backend", backend, "-n", 2, "--json").json
    assert (json["number"], json["left_off"], json["is_estimate"]) == (5, 3, False)
    assert json["tasks"][0]["key"] == "order-4"


def test_list_order_can_be_reversed(make, listed) -> None:
    made = [make() for _ in range(3)]
    assert listed("--reverse", "-n", 2) == ids(*made[:2])


def test_list_filters_by_what_the_admin_filters_by(backend, make, listed) -> None:
    executor = ExecutorFactory.create(backend=backend, using=backend, name="web-1")
    schedule = ScheduleFactory.create(backend=backend, using=backend, name="report")
    parent = make(successful=True, finished_at=ago(7200))
    child = make(parent_id=parent.pk, queue_name="emails")
    failed = make(failed=True, finished_at=ago(60), errors=[error("disk full")], task_type="tests.tasks.greet")
    running = make(running=True, executor_id=executor.pk)
    assert listed("--status", "failed") == ids(failed)
    assert listed("--queue", "emails") == listed("--parent", parent.pk) == ids(child)
    assert listed("--task", "greet") == listed("--task", "tests.tasks.greet") == ids(failed)
    assert listed("--executor", "web-1") == listed("--executor", executor.pk) == ids(running)
    assert listed("--ended-since", "1h") == ids(failed)
    assert listed("--ended-until", "1h") == ids(parent)
    assert listed("--enqueued-since", "2030-01-01T00:00") == []
    assert listed("--schedule", schedule.name) == []


def test_list_searches_like_the_search_box(backend, make, listed) -> None:
    row = make(key="order-7", kwargs={"order_id": 57})
    make(kwargs={"order_id": 58})
    assert listed("--search", "key:order-7") == listed("--search", "args.order_id:57") == ids(row)
    nothing = jobqueue("list", "--backend", backend, "--search", "args.password:x")
    assert "masked, so it was not searched" in nothing.err


def test_list_masks_secrets(backend, make) -> None:
    make(failed=True, kwargs={"password": "hunter2"}, errors=[error("wrong password hunter2")])
    for words in (["--json"], []):
        result = jobqueue("list", "--backend", backend, *words)
        assert result.out
        assert "hunter2" not in result.out + result.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--task", "ad"), "Unknown task 'ad' (did you mean 'add'?)."),
        (("--queue", "defalt"), "Unknown queue 'defalt' (did you mean 'default'?)."),
        (("--executor", "web-9"), "Unknown executor 'web-9'. See: manage.py jobqueue executors"),
        (("--schedule", "rep"), "Unknown schedule 'rep'. See: manage.py jobqueue schedules --all"),
    ],
)
def test_list_names_what_does_not_exist(backend, make, words, problem: str) -> None:
    make(queue_name="default")
    result = jobqueue("list", "--backend", backend, *words)
    assert (result.code, result.err) == (1, problem)


def test_list_without_a_match_says_so(backend) -> None:
    assert jobqueue("list", "--backend", backend).err == "No task matches.\n"
