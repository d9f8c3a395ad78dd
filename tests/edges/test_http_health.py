"""health/live and health/ready: the status, and problems for callers with permission."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobqueue.engine import engine_for
from jobqueue.http import health
from tests.factories import ExecutorFactory, QueueFactory, ago, make_user
from tests.http import Shop, TaskFactory, tasks_setting, token

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def tasks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = tasks_setting()
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)


def test_live_answers_without_the_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.db.backends.utils.CursorWrapper.execute", None)

    response = client.get("/jobqueue/health/live")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["health/", "health/ready"])
def test_empty_queue_is_ready(client: Client, path: str) -> None:
    response = client.get(f"/jobqueue/{path}")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_served_queue_is_ready(client: Client) -> None:
    TaskFactory(queue_name="mail")
    ExecutorFactory(queues=["mail", "other"])

    assert client.get("/jobqueue/health/").status_code == 200


def test_queue_without_executor_is_not_ready(shop: Shop) -> None:
    TaskFactory(queue_name="mail")
    ExecutorFactory(queues=["other"])

    response = shop.get("health/")

    assert response.status_code == 503
    assert response["Retry-After"]
    assert response.json() == {
        "status": "failing",
        "problems": [{"where": "default/mail", "what": "No active executor serves this queue."}],
    }


def test_queue_with_paused_executor_is_not_ready(shop: Shop) -> None:
    TaskFactory(queue_name="mail")
    ExecutorFactory(queues=["mail"], state="PAUSED")
    ExecutorFactory(queues=["other"])

    (problem,) = shop.get("health/").json()["problems"]

    assert problem["what"] == "All active executors that serve this queue are paused."


@pytest.mark.parametrize("columns", [{"scheduled": True, "wake_at": ago(60)}, {"running": True}], ids=["due", "held"])
def test_queue_with_due_tasks_and_no_executor_is_not_ready(shop: Shop, settings: Any, columns: dict[str, Any]) -> None:
    settings.TASKS = tasks_setting(READY_AGE_LIMIT=None)
    TaskFactory(queue_name="mail", **columns)

    (problem,) = shop.get("health/").json()["problems"]

    assert problem == {"where": "default/mail", "what": "No active executor serves this queue."}
    ExecutorFactory()
    assert shop.get("health/").status_code == 200


def test_queue_with_an_old_task_is_not_ready(shop: Shop, settings: Any) -> None:
    settings.TASKS = tasks_setting(READY_AGE_LIMIT=50)
    TaskFactory()
    ExecutorFactory()

    (problem,) = shop.get("health/").json()["problems"]

    assert problem["where"] == "default/default"
    assert re.search(r"has been ready for [67]\d s; 50 s is the limit", problem["what"])


def test_no_age_limit_accepts_old_tasks(client: Client, settings: Any) -> None:
    settings.TASKS = tasks_setting(READY_AGE_LIMIT=None)
    TaskFactory(enqueued_at="2020-01-01T00:00Z", rank="2020-01-01T00:00Z")
    ExecutorFactory()

    assert client.get("/jobqueue/health/").status_code == 200


def test_paused_queue_is_ready(client: Client) -> None:
    TaskFactory(queue_name="mail")
    QueueFactory(name="mail", paused=True)

    assert client.get("/jobqueue/health/").status_code == 200


def test_ready_checks_queues_of_all_backends(client: Client) -> None:
    TaskFactory(using="sqlite", backend="sqlite")
    client.force_login(make_user("view_task"))

    (problem,) = client.get("/jobqueue/health/").json()["problems"]

    assert problem["where"] == "sqlite/default"


@pytest.mark.parametrize(
    ("allowed", "shown"),
    [
        ({"queues": ["mail"]}, ["default/mail"]),
        ({"queues": ["*"]}, ["default/default", "default/mail"]),
        ({"queues": []}, []),
        ({"queues": [], "metrics": True}, ["default/default", "default/mail", "sqlite/default"]),
    ],
    ids=str,
)
def test_token_sees_only_its_queues(shop: Shop, settings: Any, allowed: dict[str, Any], shown: list[str]) -> None:
    settings.TASKS = tasks_setting({"shop": token() | allowed})
    TaskFactory(queue_name="mail")
    TaskFactory()
    TaskFactory(using="sqlite", backend="sqlite")

    response = shop.get("health/")

    assert response.status_code == 503
    assert [problem["where"] for problem in response.json()["problems"]] == shown


@pytest.mark.parametrize("is_failing", [False, True])
def test_result_is_cached_for_a_second(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_failing: bool
) -> None:
    client.get("/jobqueue/health/")  # what others left is forgotten
    monkeypatch.setattr(health, "CACHE_SECONDS", 3600.0)
    monkeypatch.setattr(health, "_latest", (-math.inf, []))
    if is_failing:
        TaskFactory()

    with CaptureQueriesContext(connection) as queries:
        statuses = {client.get("/jobqueue/health/").status_code}
        count = len(queries)
        statuses |= {client.get("/jobqueue/health/").status_code for _ in range(9)}

    assert statuses == {503 if is_failing else 200}
    assert len(queries) == count
    assert len([record for record in caplog.records if record.name == "jobqueue.http.health"]) == int(is_failing)
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
    ExecutorFactory()
    assert client.get("/jobqueue/health/").status_code == 200


def test_log_line_lists_ten_queues(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(50):
        TaskFactory(queue_name=f"{number:0>128}")

    client.get("/jobqueue/health/")

    (line,) = [record.getMessage() for record in caplog.records if record.name == "jobqueue.http.health"]
    assert line.endswith(f"; and {50 - health.MAX_LOGGED} more")
    assert len(line) < 5000


@pytest.mark.parametrize("who", ["nobody", "wrong token", "without permission"])
def test_unauthorized_caller_sees_no_queue_names(who: str) -> None:
    TaskFactory(queue_name="mail")
    client = Client()
    if who == "without permission":
        client.force_login(make_user("submit_task"))

    response = Shop(client, "Bearer wrong" if who == "wrong token" else "").get("health/")

    assert (response.status_code, response.json()) == (503, {"status": "failing", "problems": []})


def test_queue_name_cannot_forge_a_log_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    TaskFactory(queue_name="x\n13:59:59 CRITICAL executor.failed\x1b]0;pwned\x07")

    client.get("/jobqueue/health/")

    (line,) = [record.getMessage() for record in caplog.records if record.name == "jobqueue.http.health"]
    assert r"default/x\n13:59:59 CRITICAL executor.failed\x1b]0;pwned\x07" in line
    assert line.isprintable()


def test_user_with_view_task_sees_queue_names() -> None:
    TaskFactory(queue_name="mail")
    client = Client()
    client.force_login(make_user("view_task"))

    assert client.get("/jobqueue/health/").json()["problems"]


def test_unreachable_database_is_not_ready(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(engine_for("default"), "queue_latency", away)

    response = shop.get("health/ready")

    assert response.status_code == 503
    assert response.json()["problems"] == [{"where": "default", "what": "The database is unreachable."}]


@pytest.mark.parametrize("path", ["health/", "health/live", "health/ready", "openapi.json"])
def test_post_is_not_allowed(client: Client, path: str) -> None:
    assert client.head(f"/jobqueue/{path}").status_code == 200
    assert client.post(f"/jobqueue/{path}").status_code == 405
