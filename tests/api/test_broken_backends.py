"""One entry of TASKS that cannot be used: the others work, and a check reports it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail
from django.core.management.sql import emit_post_migrate_signal
from django.test import Client

import jobqueue as queue
from jobqueue import api
from jobqueue.declarations import checks
from jobqueue.models import Task
from tests import tasks
from tests.admin.pages import task_url
from tests.cli.commands import BOTH, jobqueue
from tests.http.client import person

OURS = "jobqueue.backend.JobQueueBackend"
BROKEN: dict[str, Any] = {
    "import": {"BACKEND": "shop.backends.Missing"},
    "no backend": {},
    "not a dict": None,
    "queues": {"BACKEND": OURS, "QUEUES": "emails"},
    "option": {"BACKEND": OURS, "OPTIONS": {"NOTIFY": 3}},
    "options": {"BACKEND": OURS, "OPTIONS": 3},
    "database": {"BACKEND": OURS, "OPTIONS": {"DATABASE": "nowhere"}},
}


@pytest.fixture(params=BROKEN.values(), ids=list(BROKEN))
def broken(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.TASKS = {"broken": request.param, **settings.TASKS}


@BOTH
def test_others_work_beside_a_broken_backend(broken: None, client: Client, staff: Any) -> None:
    result = tasks.add.enqueue(1)
    assert api.aliases() == ["default", "sqlite"]
    assert queue.cancel(result.id).cancelled == 1
    result.refresh()

    for path in ("", "task/", "queue/", "executor/", "limit/", "schedule/", "task/failures/", "task/summary/"):
        assert client.get(f"/admin/jobqueue/{path}").status_code == 200, path
    assert client.get(task_url(Task.objects.get(pk=result.id))).status_code == 200
    for path in ("health/", "health/ready", "metrics/"):
        assert person(is_superuser=True).get(path).status_code == 200, path
    for verb in (["status"], ["list"], ["executors"], ["limits"], ["schedules"]):
        assert jobqueue(*verb, "--backend", "default").code == 0


@BOTH
def test_flush_and_migrate_work_beside_a_broken_backend(broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mail, "outbox")  # as outside of a test
    emit_post_migrate_signal(0, False, "default")
    emit_post_migrate_signal(0, False, "default", plan=[])


def test_check_reports_a_broken_backend(broken: None) -> None:
    errors = [str(message) for message in checks.run_checks() if message.level >= 40]
    assert errors
    assert all("TASKS['broken']" in error for error in errors)


def test_broken_backend_itself_says_why(broken: None) -> None:
    with pytest.raises(Exception, match=r"broken|Missing|BACKEND|QUEUES|NoneType|nowhere"):
        tasks.add.using(backend="broken").enqueue(1)
