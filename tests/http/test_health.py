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
from tests.factories import ExecutorFactory, QueueFactory, ago
from tests.http.client import Shop, TaskFactory, person, tasks_setting, token

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def tasks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = tasks_setting()
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)


def read_problems(caller: Shop) -> list[tuple[str, str]]:
    """Return the problems of a site that is not ready."""
    response = caller.get("health/ready")
    assert (response.status_code, response["Retry-After"], response.json()["status"]) == (503, "5", "failing")
    return [(problem["where"], problem["what"]) for problem in response.json()["problems"]]


def test_live_answers_without_the_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.db.backends.utils.CursorWrapper.execute", None)

    response = client.get("/jobqueue/health/live")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["health/", "health/ready"])
def test_empty_or_served_queue_is_ready(shop: Shop, path: str) -> None:
    assert (shop.get(path).status_code, shop.get(path).json()) == (200, {"status": "ok"})

    TaskFactory(queue_name="mail")
    ExecutorFactory(queues=["mail", "other"])

    assert shop.get(path).status_code == 200


@pytest.mark.parametrize(
    ("executors", "problem"),
    [
        ([{"queues": ["other"]}], "No active executor serves this queue."),
        (
            [{"queues": ["mail"], "state": "PAUSED"}, {"queues": ["other"]}],
            "All active executors that serve this queue are paused.",
        ),
    ],
)
def test_queue_without_active_executor_is_not_ready(shop: Shop, executors: list[Any], problem: str) -> None:
    TaskFactory(queue_name="mail")
    for columns in executors:
        ExecutorFactory(**columns)

    assert read_problems(shop) == [("default/mail", problem)]


@pytest.mark.parametrize("columns", [{"scheduled": True, "wake_at": ago(60)}, {"running": True}], ids=["due", "held"])
def test_queue_with_due_tasks_and_no_executor_is_not_ready(shop: Shop, settings: Any, columns: dict[str, Any]) -> None:
    settings.TASKS = tasks_setting(READY_AGE_LIMIT=None)
    TaskFactory(queue_name="mail", **columns)

    assert read_problems(shop) == [("default/mail", "No active executor serves this queue.")]
    ExecutorFactory()
    assert shop.get("health/").status_code == 200


def test_queue_with_an_old_task_is_not_ready(shop: Shop, settings: Any) -> None:
    settings.TASKS = tasks_setting(READY_AGE_LIMIT=50)
    TaskFactory()
    ExecutorFactory()

    ((where, what),) = read_problems(shop)

    assert where == "default/default"
    assert re.search(r"has been ready for [67]\d s; 50 s is the limit", what)
    settings.TASKS = tasks_setting(READY_AGE_LIMIT=None)
    assert shop.get("health/").status_code == 200


def test_paused_queue_is_ready(shop: Shop) -> None:
    TaskFactory(queue_name="mail")
    QueueFactory(name="mail", paused=True)

    assert shop.get("health/").status_code == 200


@pytest.mark.parametrize(
    ("allowed", "places"),
    [
        ({"queues": ["mail"]}, ["default/mail"]),
        ({"queues": ["*"]}, ["default/default", "default/mail"]),
        ({"queues": []}, []),
        ({"queues": [], "metrics": True}, ["default/default", "default/mail", "sqlite/default"]),
    ],
    ids=str,
)
def test_token_sees_only_its_queues(shop: Shop, settings: Any, allowed: dict[str, Any], places: list[str]) -> None:
    settings.TASKS = tasks_setting({"shop": token() | allowed})
    TaskFactory(queue_name="mail")
    TaskFactory()
    TaskFactory(using="sqlite", backend="sqlite")

    assert [where for where, _ in read_problems(shop)] == places


def test_only_users_with_view_task_see_queue_names(client: Client) -> None:
    TaskFactory(using="sqlite", backend="sqlite")

    assert [where for where, _ in read_problems(person("view_task"))] == ["sqlite/default"]
    for stranger in (Shop(client, ""), Shop(client, "Bearer wrong"), person("submit_task")):
        assert read_problems(stranger) == []


@pytest.mark.parametrize("is_failing", [False, True])
def test_result_is_cached_for_a_second(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_failing: bool
) -> None:
    monkeypatch.setattr(health, "CACHE_SECONDS", 3600.0)
    monkeypatch.setattr(health, "_latest", (-math.inf, []))
    if is_failing:
        TaskFactory()

    with CaptureQueriesContext(connection) as queries:
        statuses = {shop.get("health/").status_code}
        count = len(queries)
        statuses |= {shop.get("health/").status_code for _ in range(9)}

    assert statuses == {503 if is_failing else 200}
    assert len(queries) == count
    assert len([record for record in caplog.records if record.name == "jobqueue.http.health"]) == int(is_failing)


def test_log_line_is_short_and_cannot_be_forged(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    TaskFactory(queue_name="\n13:59:59 CRITICAL executor.failed\x1b]0;pwned\x07")
    for number in range(49):
        TaskFactory(queue_name=f"{number:0>128}")

    shop.get("health/")

    (line,) = [record.getMessage() for record in caplog.records if record.name == "jobqueue.http.health"]
    assert line.endswith(f"; and {50 - health.MAX_LOGGED} more")
    assert r"default/\n13:59:59 CRITICAL executor.failed\x1b]0;pwned\x07" in line
    assert line.isprintable()
    assert len(line) < 5000


def test_unreachable_database_is_not_ready(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(engine_for("default").queues, "queue_latency", away)

    assert read_problems(shop) == [("default", "The database is unreachable.")]


@pytest.mark.parametrize("path", ["health/", "health/live", "health/ready", "openapi.json"])
def test_post_is_not_allowed(client: Client, path: str) -> None:
    assert client.head(f"/jobqueue/{path}").status_code == 200
    assert client.post(f"/jobqueue/{path}").status_code == 405
