"""One executor and ordinary work."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, compute, news, work_later

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("body", [book, compute, work_later], ids=lambda body: body.name)
def test_backlog_is_processed_without_polling_delays(fleet: Fleet, body: Any) -> None:
    """The same holds while the pools are full in turns, and one of them finds no task."""
    body.enqueue_many([((0.01,), {}) for _ in range(60)])
    process = fleet.start("--threads", "2", "--async-slots", "2", "--poll-interval", "10m", notify=False)
    assert wait_for_end() == {"SUCCESSFUL": 60}
    assert process.stop() == 0


def test_unknown_task_is_left_for_newer_executor(fleet: Fleet) -> None:
    result = news.enqueue()
    older = fleet.start(environment={"TESTS_WITHOUT_NEWS": "1"})
    older.output.wait_for("WARNING .*task.deferred .*tests.news.* count=1 reason=UnknownTask")
    row = Task.objects.get(pk=result.id)
    assert (row.status, row.attempts, row.executor_losses, row.wake_at) == ("AWAITING_CODE", 0, 0, None)
    assert [error["exception_class_path"] for error in row.errors] == ["jobqueue.exceptions.UnknownTask"]
    newer = fleet.start()
    assert wait_for_end() == {"SUCCESSFUL": 1}
    assert (newer.stop(), older.stop()) == (0, 0)


@pytest.mark.parametrize("variable", ["TESTS_WITHOUT_NEWS", "TESTS_NEWS_WITHOUT_TITLE"])
def test_old_executors_do_not_starve_calls_of_new_code(fleet: Fleet, variable: str) -> None:
    old = [fleet.start(environment={variable: "1"}) for _ in range(2)]
    new = fleet.start()
    news.enqueue_many([((), {"title": str(number)}) for number in range(50)])

    assert wait_for_end() == {"SUCCESSFUL": 50}

    assert not Task.objects.exclude(attempts=0)
    assert not Task.objects.exclude(worker_ids=[str(new.row.pk)])
    assert [process.stop() for process in [*old, new]] == [0, 0, 0]
