"""Celery's tasks in a real executor: states, time limits, retries, callbacks, a chord, and get()."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from jobqueue.contrib.celery import chord, shared_task
from jobqueue.contrib.celery.result import AsyncResult
from tests.contrib import celery_tasks
from tests.contrib.celery_tasks import add, echo, flaky, slow, total
from tests.executor.harness import Start, gates
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])


@shared_task(bind=True, track_started=True)
def report_at(self: Any, gate: str) -> str:
    gates[gate].pass_through()
    self.update_state(state="PROGRESS", meta={"current": 1, "total": 4, "note": "x" * 300})
    gates["reported"].pass_through()
    return "done"


def test_update_state_is_read_while_the_task_runs(start: Start) -> None:
    result = report_at.delay("begun")
    start()
    gates["begun"].wait_for()
    assert (result.state, result.info) == ("STARTED", None)
    gates["begun"].open()
    wait_until(lambda: AsyncResult(result.id).state == "PROGRESS", "the state")
    assert result.info == {"current": 1, "total": 4, "note": "x" * 300}
    gates["reported"].open()
    assert result.get(timeout=30) == "done"


@pytest.mark.usefixtures("no_collection")
def test_tasks_chords_and_time_limits_work_in_an_executor(start: Start) -> None:
    celery_tasks.calls.clear()
    limited, retried = slow.delay(), flaky.delay(2, countdown=0)
    joined = chord([add.s(n, n) for n in range(4)])(total.s())
    add.apply_async((1, 2), link=echo.s("linked"))
    start()
    assert (limited.get(timeout=30), retried.get(timeout=30), joined.get(timeout=30)) == ("in time", 2, 12)
    wait_until(lambda: ((3, "linked"), {}) in celery_tasks.calls, "the linked call")


def test_get_returns_soon_after_the_end(start: Start) -> None:
    result = report_at.delay("late")
    start()
    gates["reported"].open()
    values: list[Any] = []

    def wait() -> None:
        values.append(result.get(timeout=30))
        connections.close_all()

    thread = threading.Thread(target=wait)
    gates["late"].wait_for()
    thread.start()
    gates["late"].open()
    thread.join(30)
    assert values == ["done"]
