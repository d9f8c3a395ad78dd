"""Access: tokens with their tasks and queues, users with permissions and CSRF tokens."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test import Client, override_settings
from django.urls import include, path

from jobqueue.conf.options import option_problems, parse_options
from jobqueue.engine import engine_for
from jobqueue.models import Task
from tests.factories import make_user
from tests.http.client import GREET, SECRET, Shop, TaskFactory, person, tasks_setting, token, wheres

pytestmark = pytest.mark.django_db

NEEDED = {
    "submit/": "submit_task",
    "submit/batch/": "submit_task",
    "tasks/{pk}/cancel/": "cancel_task",
    "tasks/{pk}/requeue/": "requeue_task",
    "tasks/{pk}/messages/": "send_message",
}
ANY_ID = "0193a4b5-0000-7000-8000-000000000000"

urlpatterns = [path("api/", include(([path("queue/", include("jobqueue.urls"))], "api")))]


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    settings.TASKS = tasks_setting()


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {SECRET}x", f"Basic {SECRET}", "Bearer \udcff", f"Bearer {token()['sha256']}"],
)
def test_anonymous_request_is_asked_for_a_token(client: Client, authorization: str) -> None:
    responses = [Shop(client, authorization).post(path.format(pk=ANY_ID), {}) for path in NEEDED]

    for response in (*responses, Shop(client, authorization).get(f"tasks/{ANY_ID}/")):
        assert response.status_code == 401
        assert response["WWW-Authenticate"] == 'Bearer realm="jobqueue"'
        assert wheres(response) == [""]


def test_wrong_token_with_a_session_is_refused() -> None:
    assert Shop(person("submit_task").client, "Bearer wrong").submit().status_code == 401


def test_wrong_method_is_refused_before_authentication(client: Client) -> None:
    assert client.put("/jobqueue/submit/").status_code == 405


class TestToken:
    @pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
    def test_token_needs_no_csrf_token(self, scheme: str) -> None:
        assert Shop(Client(enforce_csrf_checks=True), f"{scheme} {SECRET}").submit().status_code == 201

    @pytest.mark.parametrize(
        ("allowed", "status"),
        [([GREET], 201), (["tests.tasks.*"], 201), (["*"], 201), (["shop.*"], 403), ([], 403), (["greet"], 403)],
    )
    def test_token_allows_only_its_tasks(self, shop: Shop, settings: Any, allowed: list[str], status: int) -> None:
        settings.TASKS = tasks_setting({"shop": token(tasks=allowed)})

        response = shop.submit()

        assert response.status_code == status
        assert Task.objects.exists() == (status == 201)
        if status == 403:  # it cannot guess names
            assert response.json() == shop.submit(task="no.such.task").json()

    @pytest.mark.parametrize(
        ("body", "status", "where"),
        [
            ({"queue": "mail"}, 201, None),
            ({"queue": "default"}, 403, "/queue"),
            ({}, 403, "/queue"),
            ({"task": "tests.tasks.unknown"}, 400, "/task"),  # not reported as a forbidden queue
            ({"task": "tests.tasks.add"}, 400, "/task"),
        ],
    )
    def test_token_allows_only_its_queues(
        self, shop: Shop, settings: Any, body: Any, status: int, where: str | None
    ) -> None:
        settings.TASKS = tasks_setting({"shop": token(queues=["mail"])})

        response = shop.submit(**body)

        assert response.status_code == status
        assert where is None or wheres(response) == [where]

    def test_batch_with_a_forbidden_task_is_refused(self, shop: Shop) -> None:
        response = shop.post("submit/batch/", [{"task": GREET, "args": ["a"]}, {"task": "shop.secret"}])

        assert (response.status_code, wheres(response)) == (403, ["/1/task"])
        assert not Task.objects.exists()

    def test_token_of_another_backend_is_refused(self, shop: Shop, settings: Any) -> None:
        tasks = tasks_setting({})
        tasks["sqlite"]["OPTIONS"]["HTTP_TOKENS"] = {"shop": token()}
        settings.TASKS = tasks

        assert shop.submit().status_code == 403

    @pytest.mark.parametrize(("name", "status"), [(GREET, 200), ("tests.tasks.add", 403), ("shop.tasks.x", 403)])
    def test_token_uses_only_tasks_that_it_may_submit(self, shop: Shop, name: str, status: int) -> None:
        pk = TaskFactory(task_type=name).pk

        assert shop.get(f"tasks/{pk}/").status_code == status
        assert shop.post(f"tasks/{pk}/cancel/").status_code == status
        assert (Task.objects.get(pk=pk).status == "READY") is (status == 403)


class TestPerson:
    @pytest.mark.parametrize(("path", "permission"), NEEDED.items())
    def test_user_needs_permission_and_csrf_token(self, path: str, permission: str) -> None:
        path = path.format(pk=TaskFactory(task_type=GREET).pk)

        refused = person(permission, checks_csrf=True).post(path, {})

        assert (refused.status_code, "CSRF" in refused.json()[0]["what"]) == (403, True)
        assert person("view_task").post(path, {}).status_code == 403
        assert person(permission).post(path, {}).status_code not in (401, 403)

    def test_user_needs_view_permission_to_read(self) -> None:
        path = f"tasks/{TaskFactory(task_type='shop.tasks.any').pk}/"

        assert person("submit_task").get(path).status_code == 403
        assert person("view_task").get(path).status_code == 200

    def test_user_with_csrf_token_submits(self) -> None:
        user = person("submit_task", checks_csrf=True)
        user.client.cookies["csrftoken"] = "x" * 32

        response = user.post("submit/", {"task": GREET, "args": ["a"]}, **{"X-CSRFToken": "x" * 32})

        assert response.status_code == 201

    def test_inactive_user_is_refused(self, client: Client) -> None:
        user = make_user("submit_task")
        client.force_login(user)
        user.is_active = False
        user.save()

        assert Shop(client, "").submit().status_code == 401

    def test_user_may_not_submit_a_closed_task(self) -> None:
        response = person("submit_task").submit(task="tests.tasks.add")

        assert (response.status_code, wheres(response)) == (400, ["/task"])


class TestSetting:
    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ([], "must be a dict"),
            ({"shop": SECRET}, "must be {'sha256'"),
            ({"shop": {"sha256": "0" * 64}}, "missing required field `tasks`"),
            ({"shop": {"sha256": "0" * 64, "task": [], "queues": []}}, "(did you mean 'tasks' instead of 'task'?)"),
            ({"shop": {SECRET: [], "tasks": [], "queues": []}}, "must be {'sha256'"),
            ({"shop": token() | {"sha256": SECRET}}, "`$.sha256`"),
            ({"shop": token() | {"tasks": "*"}}, "`$.tasks`"),
            ({"shop": token() | {"metrics": "yes"}}, "`$.metrics`"),
            ({"shop": token() | {"metrics": 1}}, "`$.metrics`"),
            ({"shop": token() | {"metrics": None}}, "`$.metrics`"),
            ({"shop": token(), "till": token()}, "the same token"),
            ({1: token()}, "names for keys"),
        ],
    )
    def test_invalid_setting_is_a_check_error_without_its_values(self, value: Any, words: str) -> None:
        (problem,) = option_problems({"HTTP_TOKENS": value})

        assert words in problem
        assert SECRET not in problem
        with pytest.raises(ImproperlyConfigured):
            parse_options({"HTTP_TOKENS": value})

    def test_hash_is_case_insensitive(self, shop: Shop, settings: Any) -> None:
        settings.TASKS = tasks_setting({"shop": token() | {"sha256": token()["sha256"].upper()}})

        assert shop.submit().status_code == 201


@override_settings(ROOT_URLCONF="tests.http.test_access")
def test_urls_work_under_a_namespace_of_the_site(shop: Shop) -> None:
    body = {"task": GREET, "args": ["a"]}

    response = shop.client.post("/api/queue/submit/", body, "application/json", headers=shop.headers)

    assert response.json()["url"] == f"/api/queue/tasks/{response.json()['id']}/"
    assert shop.client.get(response.json()["url"], headers=shop.headers).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_views_are_exempt_from_atomic_requests(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """ATOMIC_REQUESTS would answer with Django's error if the database is unreachable."""
    engine = engine_for("default")
    enqueue, seen = engine.enqueues.enqueue_once, []

    def enqueue_and_record(*args: Any) -> Any:
        seen.append(len(connection.savepoint_ids))
        return enqueue(*args)

    monkeypatch.setattr(engine.enqueues, "enqueue_once", enqueue_and_record)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    assert shop.submit().status_code == 201
    assert seen == [0]


@pytest.mark.parametrize("has_sessions", [True, False])
def test_tokens_need_neither_login_nor_sessions(settings: Any, has_sessions: bool) -> None:
    login = "django.contrib.auth.middleware.LoginRequiredMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, login] if has_sessions else []

    assert Shop(Client()).submit().status_code == 201
    assert Shop(Client(), "").submit().status_code == 401
