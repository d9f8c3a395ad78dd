"""Access: tokens with their tasks and queues, users with permissions and CSRF tokens."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import include, path

from jobqueue import conf
from jobqueue.engine import engine_for
from jobqueue.models import Task
from tests import tasks as tests_tasks
from tests.factories import make_user
from tests.http import GREET, SECRET, Shop, TaskFactory, tasks_setting, token, wheres

pytestmark = pytest.mark.django_db

PATHS = ["submit/", "submit/batch/", "tasks/{pk}/cancel/", "tasks/{pk}/requeue/", "tasks/{pk}/messages/"]
NEEDED = ["submit_task", "submit_task", "cancel_task", "requeue_task", "send_message"]
LATER = "0193a4b5-0000-7000-8000-000000000000"

urlpatterns = [path("api/", include(([path("queue/", include("jobqueue.urls"))], "api")))]


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    settings.TASKS = tasks_setting()


def person(*permissions: str, strict: bool = False) -> Client:
    client = Client(enforce_csrf_checks=strict)
    client.force_login(make_user(*permissions))
    return client


class TestNobody:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        "authorization",
        ["", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {SECRET}x", f"Basic {SECRET}", "Bearer \udcff"],
    )
    def test_anonymous_request_is_asked_for_a_token(self, client: Client, path: str, authorization: str) -> None:
        response = Shop(client, authorization).post(path.format(pk=LATER), {})

        assert response.status_code == 401
        assert response["WWW-Authenticate"] == 'Bearer realm="jobqueue"'
        assert wheres(response) == [""]

    def test_anonymous_request_may_not_read(self, client: Client) -> None:
        assert client.get(f"/jobqueue/tasks/{LATER}/").status_code == 401

    def test_wrong_token_with_a_session_is_refused(self) -> None:
        assert Shop(person("submit_task"), "Bearer wrong").submit().status_code == 401

    def test_hash_of_a_token_is_refused(self, client: Client) -> None:
        assert Shop(client, f"Bearer {token()['sha256']}").submit().status_code == 401

    def test_wrong_method_is_refused_before_authentication(self, client: Client) -> None:
        assert client.put("/jobqueue/submit/").status_code == 405


class TestToken:
    def test_token_needs_no_csrf_token(self) -> None:
        assert Shop(Client(enforce_csrf_checks=True)).submit().status_code == 201

    @pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
    def test_scheme_is_case_insensitive(self, client: Client, scheme: str) -> None:
        assert Shop(client, f"{scheme} {SECRET}").submit().status_code == 201

    @pytest.mark.parametrize(
        ("allowed", "status"),
        [([GREET], 201), (["tests.tasks.*"], 201), (["*"], 201), (["shop.*"], 403), ([], 403), (["greet"], 403)],
    )
    def test_token_allows_only_its_tasks(self, client: Client, settings: Any, allowed: list[str], status: int) -> None:
        settings.TASKS = tasks_setting({"shop": token(tasks=allowed)})

        response = Shop(client).submit()

        assert response.status_code == status
        assert Task.objects.exists() == (status == 201)

    def test_token_cannot_guess_task_names(self, client: Client, settings: Any) -> None:
        settings.TASKS = tasks_setting({"shop": token(tasks=["shop.*"])})

        assert Shop(client).submit().json() == Shop(client).submit(task="no.such.task").json()

    @pytest.mark.parametrize(("queue", "status"), [("mail", 201), ("default", 403), (None, 403)])
    def test_token_allows_only_its_queues(self, client: Client, settings: Any, queue: str | None, status: int) -> None:
        settings.TASKS = tasks_setting({"shop": token(queues=["mail"])})

        response = Shop(client).submit(queue=queue)

        assert response.status_code == status
        assert status == 201 or wheres(response) == ["/queue"]

    @pytest.mark.parametrize("task", ["tests.tasks.unknown", "tests.tasks.add"])
    def test_closed_task_is_not_reported_as_forbidden_queue(self, client: Client, settings: Any, task: str) -> None:
        settings.TASKS = tasks_setting({"shop": token(queues=["mail"])})

        response = Shop(client).submit(task=task)

        assert (response.status_code, wheres(response)) == (400, ["/task"])

    def test_batch_with_a_forbidden_task_is_refused(self, client: Client) -> None:
        body = [{"task": GREET, "args": ["a"]}, {"task": "shop.secret"}]

        response = Shop(client).post("submit/batch/", body)

        assert (response.status_code, wheres(response)) == (403, ["/1/task"])
        assert not Task.objects.exists()

    def test_token_of_another_backend_is_refused(self, client: Client, settings: Any) -> None:
        tasks = tasks_setting({})
        tasks["sqlite"]["OPTIONS"]["HTTP_TOKENS"] = {"shop": token()}
        settings.TASKS = tasks

        assert Shop(client).submit().status_code == 403

    def test_token_reads_tasks_that_it_may_submit(self, client: Client) -> None:
        mine, closed, others = (TaskFactory(task_type=name) for name in (GREET, "tests.tasks.add", "shop.tasks.x"))

        assert Shop(client).get(f"tasks/{mine.pk}/").status_code == 200
        assert Shop(client).get(f"tasks/{closed.pk}/").status_code == 403
        assert Shop(client).get(f"tasks/{others.pk}/").status_code == 403
        assert Shop(client).post(f"tasks/{others.pk}/cancel/").status_code == 403
        assert Task.objects.get(pk=others.pk).status == "READY"


class TestPerson:
    @pytest.mark.parametrize(("path", "permission"), list(zip(PATHS, NEEDED, strict=True)))
    def test_user_without_permission_is_refused(self, path: str, permission: str) -> None:
        task = TaskFactory(task_type=GREET)
        path = path.format(pk=task.pk)

        assert Shop(person("view_task"), "").post(path, {}).status_code == 403
        assert Shop(person(permission), "").post(path, {}).status_code not in (401, 403)

    def test_user_without_view_permission_may_not_read(self) -> None:
        task = TaskFactory(task_type="shop.tasks.any")

        assert Shop(person("submit_task"), "").get(f"tasks/{task.pk}/").status_code == 403
        assert Shop(person("view_task"), "").get(f"tasks/{task.pk}/").status_code == 200

    @pytest.mark.parametrize("path", PATHS)
    def test_user_without_csrf_token_is_refused(self, path: str) -> None:
        task = TaskFactory(task_type=GREET)

        response = Shop(person(*NEEDED, strict=True), "").post(path.format(pk=task.pk), {})

        assert response.status_code == 403
        assert "CSRF" in response.json()[0]["what"]

    def test_user_with_csrf_token_submits(self) -> None:
        client = person("submit_task", strict=True)
        client.cookies["csrftoken"] = "x" * 32

        response = Shop(client, "").post("submit/", {"task": GREET, "args": ["a"]}, **{"X-CSRFToken": "x" * 32})

        assert response.status_code == 201

    def test_inactive_user_is_refused(self) -> None:
        user = make_user("submit_task")
        client = Client()
        client.force_login(user)
        user.is_active = False
        user.save()

        assert Shop(client, "").submit().status_code == 401

    def test_user_may_not_submit_a_closed_task(self) -> None:
        assert tests_tasks.add.allow_http is False

        response = Shop(person("submit_task"), "").submit(task="tests.tasks.add")

        assert (response.status_code, wheres(response)) == (400, ["/task"])

    def test_site_without_tokens_accepts_users(self, settings: Any) -> None:
        """Tokens work under LoginRequiredMiddleware, too."""
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]

        assert Shop(Client()).submit().status_code == 201
        assert Shop(Client(), "").submit().status_code == 401


class TestSetting:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ([], "must be a dict"),
            ({"shop": SECRET}, "must be {'sha256'"),
            ({"shop": {"sha256": "0" * 64}}, "missing required field `tasks`"),
            ({"shop": {"sha256": "0" * 64, "task": [], "queues": []}}, "(did you mean 'tasks' instead of 'task'?)"),
            ({"shop": {SECRET: [], "tasks": [], "queues": []}}, "must be {'sha256'"),
            ({"shop": token() | {"sha256": SECRET}}, "`$.sha256`"),
            ({"shop": token() | {"tasks": "*"}}, "`$.tasks`"),
            ({"shop": token(), "till": token()}, "the same token"),
            ({1: token()}, "names for keys"),
        ],
    )
    def test_invalid_setting_is_a_check_error_without_its_values(self, given: Any, words: str) -> None:
        (problem,) = conf.problems({"HTTP_TOKENS": given})

        assert words in problem
        assert SECRET not in problem

    def test_invalid_setting_grants_nothing(self) -> None:
        with pytest.raises(ImproperlyConfigured, match="sha256"):
            conf.parse({"HTTP_TOKENS": {"shop": {}}})

    def test_hash_is_case_insensitive(self, client: Client, settings: Any) -> None:
        settings.TASKS = tasks_setting({"shop": token() | {"sha256": token()["sha256"].upper()}})

        assert Shop(client).submit().status_code == 201


@override_settings(ROOT_URLCONF="tests.edges.test_http_access")
def test_urls_work_under_a_namespace_of_the_site(client: Client) -> None:
    response = client.post(
        "/api/queue/submit/", {"task": GREET, "args": ["a"]}, "application/json", headers=Shop(client).headers
    )

    assert response.json()["url"] == f"/api/queue/tasks/{response.json()['id']}/"
    assert client.get(response.json()["url"], headers=Shop(client).headers).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_views_are_exempt_from_atomic_requests(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """ATOMIC_REQUESTS would answer with Django's error if the database is unreachable."""
    engine = engine_for("default")
    enqueue = engine.enqueue_once
    seen = []

    def enqueue_and_look(*args: Any) -> Any:
        seen.append(len(connection.savepoint_ids))
        return enqueue(*args)

    monkeypatch.setattr(engine, "enqueue_once", enqueue_and_look)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    assert Shop(client).submit().status_code == 201
    assert seen == [0]


def test_views_work_without_sessions(settings: Any) -> None:
    settings.MIDDLEWARE = []

    assert Shop(Client()).submit().status_code == 201
    assert Shop(Client(), "").submit().status_code == 401


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()
