"""task_finished for tasks that end while they wait: by jobqueue.cancel(), the admin, HTTP and the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

import jobqueue
from jobqueue import api
from jobqueue.api import ends
from jobqueue.conf.compat import PACKAGE, task_finished
from jobqueue.declarations.results import CANCELLED
from jobqueue.models import Task
from tests import tasks
from tests.admin.pages import BOTH, LIST_URL, task_url
from tests.cli.commands import jobqueue as command
from tests.executor.harness import connected

pytestmark = BOTH
ADD = {"task_type": tasks.add.task_type, "args": [1]}


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    """Return the results of task_finished."""
    results: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        results.append(task_result)

    with connected(receive, task_finished):
        yield results


@pytest.fixture
def committing(django_capture_on_commit_callbacks: Any, backend: str) -> Callable[[], Any]:
    """Run what follows a commit, at the end of the block."""
    return lambda: django_capture_on_commit_callbacks(using=backend, execute=True)


WAITING: list[dict[str, Any]] = [
    {}, {"scheduled": True}, {"suspended": True}, {"blocked": True}, {"awaiting_code": True}
]  # fmt: skip


@pytest.mark.parametrize("state", WAITING, ids=str)
def test_cancel_of_a_waiting_task_sends_task_finished_once(
    make: Any, sent: list[Any], committing: Any, backend: str, state: dict[str, Any]
) -> None:
    task = make(**ADD, **state)

    with committing():
        jobqueue.cancel(task.pk)
        assert sent == []
    jobqueue.cancel(task.pk)

    (result,) = sent
    assert (result.id, result.backend, result.status.value) == (str(task.pk), backend, "FAILED")
    assert result.errors == [CANCELLED]
    assert result.finished_at == Task.objects.using(backend).get(pk=task.pk).finished_at


def test_cancel_that_is_rolled_back_sends_nothing(make: Any, sent: list[Any], committing: Any, backend: str) -> None:
    task = make(**ADD)

    with committing(), transaction.atomic(using=backend):
        jobqueue.cancel(task.pk)
        transaction.set_rollback(True, using=backend)

    assert sent == []


def test_ends_of_a_tree_are_sent_in_batches(
    make: Any, sent: list[Any], committing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "BATCH", 2)
    top = make(**ADD)
    children = [make(**ADD, parent_id=top.pk) for _ in range(4)]

    with committing():
        jobqueue.cancel(top.pk, tree=True)

    assert [result.id for result in sent] == [str(task.pk) for task in (top, *children)]


def test_cancelled_tasks_are_no_errors_in_the_log_of_django(
    make: Any, committing: Any, sent: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, PACKAGE), committing():
        jobqueue.cancel(make(**ADD).pk)

    assert len(sent) == 1
    assert [record for record in caplog.records if record.name == PACKAGE] == []


def test_receiver_that_fails_stops_no_other(make: Any, sent: list[Any], committing: Any) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError

    rows = [make(**ADD) for _ in range(2)]
    with connected(fail, task_finished), committing():
        jobqueue.cancel([row.pk for row in rows])

    assert len(sent) == 2


def test_ends_without_a_receiver_cost_nothing(make: Any, committing: Any) -> None:
    task = make(**ADD)
    with committing() as callbacks:
        jobqueue.cancel(task.pk)

    assert callbacks == []


def test_task_without_code_and_ended_task_send_nothing(make: Any, sent: list[Any], committing: Any) -> None:
    unknown, failed, running = make(), make(**ADD, failed=True), make(**ADD, running=True)

    with committing():
        jobqueue.cancel([unknown.pk, failed.pk, running.pk])
        api.discard([failed.pk])  # its end was announced when it failed

    assert sent == []


@pytest.mark.parametrize("way", ["list", "page", "command"])
def test_people_who_cancel_a_task_send_task_finished(
    client: Any, staff: Any, make: Any, sent: list[Any], committing: Any, backend: str, way: str
) -> None:
    task = make(**ADD)

    with committing():
        if way == "list":
            ticked = {"action": "cancel_selected", "_selected_action": str(task.pk)}
            page = client.post(f"{LIST_URL}?backend={backend}", ticked)
            client.post(f"{LIST_URL}?backend={backend}", dict(page.context["hidden"]))
        elif way == "page":
            client.post(task_url(task, "cancel"), {"confirmed": "1"})
        else:
            command("cancel", str(task.pk), "--backend", backend, "--yes")

    assert [result.id for result in sent] == [str(task.pk)]
