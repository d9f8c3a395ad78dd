"""GET tasks/<id>/, and POST cancel/, requeue/ and messages/."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.db import connection

from jobqueue import api
from jobqueue.models import InboxMessage, Task
from jobqueue.values.changes import CancelReport, RequeueReport
from jobqueue.values.redaction import MASK
from tests.factories import MessageFactory, error
from tests.http.client import GREET, Shop, TaskFactory, person, tasks_setting, token, wheres

pytestmark = pytest.mark.django_db

DIARY = "tests.actors.Diary"


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    settings.TASKS = tasks_setting(MAX_PAYLOAD_BYTES=1000)


class TestShow:
    def test_successful_task_shows_its_result(self, shop: Shop) -> None:
        task = TaskFactory(successful=True, task_type=GREET, return_value={"text": "hello", "access_token": "t0p"})

        response = shop.get(f"tasks/{task.pk}/")

        body = response.json()
        assert response.status_code == 200
        assert response["Cache-Control"] == "no-store"
        assert (body["id"], body["status"], body["task"]) == (str(task.pk), "SUCCESSFUL", GREET)
        assert body["url"] == f"/jobqueue/tasks/{task.pk}/"
        assert body["result"] == {"text": "hello", "access_token": MASK}
        assert body["errors"] == []

    def test_etag_changes_with_the_task_and_saves_an_answer(self, shop: Shop) -> None:
        task = TaskFactory(scheduled=True, task_type=GREET)
        path = f"/jobqueue/tasks/{task.pk}/"
        etag = shop.get(f"tasks/{task.pk}/")["ETag"]

        unchanged = shop.client.get(path, headers=shop.headers | {"If-None-Match": etag})
        assert (unchanged.status_code, unchanged.content, unchanged["Cache-Control"]) == (304, b"", "no-store")
        api.cancel(task.pk)
        changed = shop.client.get(path, headers=shop.headers | {"If-None-Match": etag})
        assert (changed.status_code, changed.json()["status"]) == (200, "CANCELLED")
        assert changed["ETag"] != etag

    @pytest.mark.parametrize("action", ["cancel", "requeue", "messages"])
    def test_if_match_refuses_to_change_another_state(self, shop: Shop, action: str) -> None:
        traits = {"cancel": {"scheduled": True}, "requeue": {"failed": True}, "messages": {"suspended": True}}
        task = TaskFactory(**traits[action], task_type=DIARY)
        body = {"body": "hello"} if action == "messages" else None
        before = Task.objects.values().get()

        refused = shop.post(f"tasks/{task.pk}/{action}/", body, **{"If-Match": '"other"'})
        assert refused.status_code == 412
        assert refused.json()[0]["what"] == "The task has changed since you read it. Read it again."
        assert (Task.objects.values().get(), InboxMessage.objects.count()) == (before, 0)
        etag = shop.get(f"tasks/{task.pk}/")["ETag"]
        assert shop.post(f"tasks/{task.pk}/{action}/", body, **{"If-Match": etag}).status_code in (200, 201)

    def test_failed_task_shows_its_errors_without_tracebacks(self, shop: Shop) -> None:
        task = TaskFactory(failed=True, task_type=GREET, errors=[error("first"), error("second", attempt=2)])

        body = shop.get(f"tasks/{task.pk}/").json()

        assert body["result"] is None
        assert [(e["attempt"], e["exception"], e["message"]) for e in body["errors"]] == [
            (1, "shop.errors.SMTPServerBusy", "first"),
            (2, "shop.errors.SMTPServerBusy", "second"),
        ]
        assert "Traceback" not in json.dumps(body)

    def test_masked_arguments_are_masked_in_errors_and_result(self, shop: Shop) -> None:
        task = TaskFactory(
            failed=True,
            task_type=GREET,
            args=["anna"],
            kwargs={"password": "hunter2"},
            errors=[error("no login as anna with hunter2; token=abc at postgresql://u:pw@host/db")],
            return_value=["said hunter2", 1],
        )

        body = shop.get(f"tasks/{task.pk}/").json()

        words = f"no login as anna with {MASK}; token={MASK} at postgresql://u:{MASK}@host/db"
        assert [entry["message"] for entry in body["errors"]] == [words]
        assert body["result"] == [f"said {MASK}", 1]

    def test_redact_patterns_are_per_backend(self, shop: Shop, settings: Any) -> None:
        settings.TASKS = tasks_setting(REDACT=["text"])
        task = TaskFactory(successful=True, task_type=GREET, return_value={"text": "hello", "token": "t0p"})

        assert shop.get(f"tasks/{task.pk}/").json()["result"] == {"text": MASK, "token": "t0p"}

    def test_unreadable_result_is_null(self, shop: Shop) -> None:
        task = TaskFactory(successful=True, task_type=GREET)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE jobqueue_task SET return_value = %s::jsonb", ["1" * 5000])

        assert shop.get(f"tasks/{task.pk}/").json()["result"] is None

    @pytest.mark.parametrize(("permissions", "is_shown"), [((), False), (("view_payload",), True)])
    def test_result_needs_view_payload(self, permissions: tuple[str, ...], is_shown: bool) -> None:
        task = TaskFactory(successful=True)

        assert ("result" in person("view_task", *permissions).get(f"tasks/{task.pk}/").json()) == is_shown

    @pytest.mark.parametrize("pk", ["00000000-0000-7000-8000-000000000000", "7", "a b", "%00"])
    def test_unknown_task(self, shop: Shop, pk: str) -> None:
        response = shop.get(f"tasks/{pk}/")

        assert (response.status_code, wheres(response)) == (404, [""])


class TestCancel:
    @pytest.mark.parametrize(
        ("traits", "status", "expected"),
        [({}, 200, "CANCELLED"), ({"running": True}, 202, "RUNNING"), ({"successful": True}, 409, None)],
    )
    def test_cancel_ends_a_task_or_asks_it_to_stop(self, shop: Shop, traits: Any, status: int, expected: str) -> None:
        task = TaskFactory(**traits, task_type=GREET)

        response = shop.post(f"tasks/{task.pk}/cancel/")

        assert response.status_code == status
        assert expected is None or response.json()["status"] == Task.objects.get().status == expected
        assert (Task.objects.get().cancel_requested_at is not None) is (status < 300)

    @pytest.mark.parametrize(
        ("columns", "status"),
        [
            ({"task_type": "billing.charge"}, "READY"),
            ({"queue_name": "payroll"}, "READY"),
            ({"task_type": "tests.tasks.add"}, "CANCELLED"),  # the token allows its name; HTTP may not submit it
        ],
    )
    def test_cancel_with_tree_skips_tasks_not_allowed(
        self, shop: Shop, settings: Any, columns: dict[str, str], status: str
    ) -> None:
        settings.TASKS = tasks_setting({"shop": token(queues=["default"])})
        task = TaskFactory(task_type=DIARY)
        child = TaskFactory(parent_id=task.pk, **columns)
        grandchild = TaskFactory(parent_id=child.pk, task_type=GREET)

        response = shop.post(f"tasks/{task.pk}/cancel/", {"tree": True})

        assert response.status_code == 200
        assert response.json()["not_allowed"] == (status == "READY")
        statuses = dict(Task.objects.values_list("pk", "status"))
        assert statuses == {task.pk: "CANCELLED", child.pk: status, grandchild.pk: "CANCELLED"}

    def test_cancel_with_tree_by_user_cancels_all(self) -> None:
        task = TaskFactory(task_type=DIARY)
        child = TaskFactory(parent_id=task.pk, task_type="billing.charge", queue_name="payroll")

        response = person("cancel_task").post(f"tasks/{task.pk}/cancel/", {"tree": True})

        assert response.json()["not_allowed"] == 0
        assert Task.objects.get(pk=child.pk).status == "CANCELLED"

    def test_locked_task(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        task = TaskFactory(task_type=GREET)
        monkeypatch.setattr(api, "cancel", lambda pk, **_: CancelReport(busy=frozenset({pk})))

        response = shop.post(f"tasks/{task.pk}/cancel/")

        assert (response.status_code, "Retry-After" in response) == (503, True)

    @pytest.mark.parametrize(("body", "where"), [({"tree": 1}, "/tree"), ({"all": True}, "/all"), ([], "")])
    def test_nonsense(self, shop: Shop, body: Any, where: str) -> None:
        task = TaskFactory(task_type=GREET)

        response = shop.post(f"tasks/{task.pk}/cancel/", body)

        assert (response.status_code, wheres(response)) == (400, [where])
        assert Task.objects.get().status == "READY"


class TestRequeue:
    @pytest.mark.parametrize(
        ("state", "status"),
        [("failed", 200), ("cancelled", 200), ("successful", 409), ("running", 409), ("scheduled", 409)],
    )
    def test_requeue_makes_an_ended_task_ready(self, shop: Shop, state: str, status: int) -> None:
        task = TaskFactory(**{state: True}, task_type=GREET)

        response = shop.post(f"tasks/{task.pk}/requeue/")

        assert response.status_code == status
        assert response.json()["status"] == "READY" if status == 200 else task.status in response.json()[0]["what"]

    def test_requeue_refuses_a_key_in_use(self, shop: Shop) -> None:
        task = TaskFactory(failed=True, task_type=GREET, key="k")
        TaskFactory(key="k")

        assert shop.post(f"tasks/{task.pk}/requeue/").status_code == 409

    def test_locked_task(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        task = TaskFactory(failed=True, task_type=GREET)
        monkeypatch.setattr(api, "requeue", lambda pk, **_: RequeueReport(busy=frozenset({pk})))

        assert shop.post(f"tasks/{task.pk}/requeue/").status_code == 503

    def test_unknown_task(self, shop: Shop) -> None:
        assert shop.post(f"tasks/{uuid4()}/requeue/").status_code == 404


class TestMessages:
    def test_idempotency_key_header_is_the_dedupe_key(self, shop: Shop) -> None:
        task = TaskFactory(suspended=True, task_type=DIARY)
        send = [("hello", {}), ("again", {}), ("other", {"dedupe_key": "n-2"})]

        answers = [
            shop.post(f"tasks/{task.pk}/messages/", {"body": body, **more}, **{"Idempotency-Key": "n-1"})
            for body, more in send
        ]

        assert [answer.status_code for answer in answers] == [201, 200, 400]
        assert InboxMessage.objects.get().dedupe_key == "n-1"

    def test_message_is_sent_and_wakes_its_receiver(self, shop: Shop, django_capture_on_commit_callbacks: Any) -> None:
        task = TaskFactory(suspended=True, task_type=DIARY)

        with django_capture_on_commit_callbacks(execute=True):
            response = shop.post(f"tasks/{task.pk}/messages/", {"body": "hello"})

        message = InboxMessage.objects.get()
        assert (response.status_code, response.json()) == (201, {"id": message.pk})
        assert (message.task_id, message.body) == (task.pk, "hello")
        assert Task.objects.get().status == "READY"

    def test_repeated_message_is_not_sent(self, shop: Shop) -> None:
        task = TaskFactory(suspended=True, task_type=DIARY)

        first, again = (shop.post(f"tasks/{task.pk}/messages/", {"body": 1, "dedupe_key": "d"}) for _ in range(2))

        assert (first.status_code, again.status_code, again.json()) == (201, 200, {"id": None})
        assert InboxMessage.objects.count() == 1

    @pytest.mark.parametrize(
        ("body", "where"),
        [
            ({}, "/body"),
            ({"body": [1]}, "/body"),  # not of Diary.Message
            ({"body": "\x00"}, "/body"),
            ({"body": "a", "dedupe_key": ""}, "/dedupe_key"),
            ({"body": "a", "dedupe_key": 7}, "/dedupe_key"),
            ({"body": "a", "to": "b"}, "/to"),
            ([], ""),
        ],
    )
    def test_nonsense(self, shop: Shop, body: Any, where: str) -> None:
        task = TaskFactory(suspended=True, task_type=DIARY)

        response = shop.post(f"tasks/{task.pk}/messages/", body)

        assert (response.status_code, wheres(response)) == (400, [where])
        assert not InboxMessage.objects.exists()

    @pytest.mark.parametrize(
        ("traits", "body", "status"),
        [
            ({"suspended": True, "task_type": DIARY}, "a" * 1001, 413),
            ({"successful": True, "task_type": DIARY}, "a", 409),
            ({"task_type": GREET}, "a", 409),  # a function
        ],
        ids=["too large", "ended", "function"],
    )
    def test_message_without_reader_is_refused(self, shop: Shop, traits: Any, body: str, status: int) -> None:
        task = TaskFactory(**traits)

        assert shop.post(f"tasks/{task.pk}/messages/", {"body": body}).status_code == status
        assert not InboxMessage.objects.exists()

    def test_repeated_message_to_an_ended_task_is_accepted(self, shop: Shop) -> None:
        task = TaskFactory(successful=True, task_type=DIARY)
        MessageFactory(task=task, dedupe_key="d")

        assert shop.post(f"tasks/{task.pk}/messages/", {"body": "a", "dedupe_key": "d"}).status_code == 200


@pytest.mark.parametrize(("path", "traits"), [("cancel", {}), ("requeue", {"failed": True})])
def test_actions_of_users_are_in_the_admin_history(shop: Shop, path: str, traits: Any, monkeypatch: Any) -> None:
    task, of_token, without_admin = (TaskFactory(task_type=GREET, **traits) for _ in range(3))
    user = person(f"{path}_task")

    assert user.post(f"tasks/{task.pk}/{path}/").status_code == 200
    assert shop.post(f"tasks/{of_token.pk}/{path}/").status_code == 200
    monkeypatch.setattr("jobqueue.http.tasks.apps.is_installed", lambda name: False)
    assert user.post(f"tasks/{without_admin.pk}/{path}/").status_code == 200

    entries = LogEntry.objects.values_list("user", "object_id", "change_message")
    assert list(entries) == [(get_user_model().objects.get().pk, str(task.pk), path.capitalize())]
