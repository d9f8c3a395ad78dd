"""All executors are gone for ten minutes. Waiting tasks are visible, and later run in order."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.db.models import F
from django.test import Client

from jobqueue import api
from jobqueue.models import Heartbeat, Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import tiny, work
from tests.cli.commands import jobqueue
from tests.factories import ExecutorFactory, TaskFactory, make_user

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])

AWAY = timedelta(minutes=10)
NOT_SERVED = "No active executor serves this queue."


def let_time_pass() -> None:
    Heartbeat.objects.update(at=F("at") - AWAY)
    Task.objects.update(**{name: F(name) - AWAY for name in ("enqueued_at", "started_at", "claimed_at", "rank")})


def test_fleet_that_comes_back_does_everything_in_order_of_rank(
    fleet: Fleet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.http.health.CACHE_SECONDS", 0.0)  # no answer from another test
    dead = ExecutorFactory.create()
    lost = TaskFactory.create(running=True, executor_id=dead.pk, task_type=work.task_type, args=[0.0])
    for priority in (0, 50, -50, 100, 0, -100):
        tiny.using(priority=priority).enqueue()
    let_time_pass()

    doctor, status = (" ".join(jobqueue(word, "--backend", "default").out.split()) for word in ("doctor", "status"))
    client.force_login(make_user("view_queue", "view_task"))
    health = client.get("/jobqueue/health/")
    page = client.get("/admin/jobqueue/queue/", {"backend": "default"}).content.decode()

    assert "Queue default: 6 READY, a latency of 10 min, and no executor serves it." in doctor
    assert "manage.py run_executors --backend default --queue default" in doctor
    assert "No executor is running. Run: manage.py run_executors" in status
    assert health.status_code == 503
    assert {"where": "default/default", "what": NOT_SERVED} in health.json()["problems"]
    assert ">No executor<" in page

    api.limit_queue("default", 1)  # all executors compete for it
    process = fleet.start("--threads", "4", heartbeat_timeout=1)

    assert wait_for_end() == {"SUCCESSFUL": 7}
    rows = list(Task.objects.order_by("rank"))
    assert [row.priority for row in rows if row.pk != lost.pk] == [100, 50, 0, 0, -50, -100]
    for before, after in pairwise(rows):
        assert before.finished_at is not None
        assert after.last_attempted_at is not None
        assert before.finished_at <= after.last_attempted_at
    assert process.stop() == 0
