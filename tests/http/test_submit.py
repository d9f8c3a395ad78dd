"""POST submit/ and submit/batch/: tasks, idempotency keys, and refusals with their places."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
from django.db import OperationalError
from django.test import AsyncRequestFactory, Client

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.http.request_body import read_body
from jobqueue.http.responses import HttpError
from jobqueue.http.submit import owned_key
from jobqueue.models import Task
from tests.api.limited import call_api
from tests.http.client import GREET, Shop, TaskFactory, person, pk_of, tasks_setting, token, wheres

pytestmark = pytest.mark.django_db

LATER = "2031-01-31T12:00:00+01:00"


@pytest.fixture(autouse=True)
def tasks_of_the_shop(settings: Any) -> None:
    settings.TASKS = tasks_setting(MAX_PAYLOAD_BYTES=1000)


class TestSubmit:
    def test_task_is_enqueued(self, shop: Shop) -> None:
        response = shop.submit(kwargs={"times": 2})

        task = Task.objects.get()
        assert response.status_code == 201
        assert response.json() == {"id": str(task.pk), "status": "READY", "url": f"/jobqueue/tasks/{task.pk}/"}
        assert response["Location"] == f"/jobqueue/tasks/{task.pk}/"
        assert (task.task_type, task.args, task.kwargs, task.status) == (GREET, ["anna"], {"times": 2}, "READY")

    def test_task_with_a_limit_is_blocked_until_it_is_admitted(self, shop: Shop) -> None:
        response = shop.submit(task=call_api.task_type, args=[7])

        task = Task.objects.get()
        assert response.json()["status"] == "BLOCKED"
        assert (task.status, task.rate_key, task.rate_limit) == ("BLOCKED", "tests.call_api:api-7", 100)
        engine_for("default").admissions.admit()
        assert Task.objects.get().status == "READY"

    def test_every_option_reaches_the_row(self, shop: Shop) -> None:
        response = shop.submit(queue="mail", priority=7, run_after=LATER, max_attempts=9, idempotency_key="order-1")

        task = Task.objects.get()
        assert response.json()["status"] == "SCHEDULED"
        assert (task.queue_name, task.priority, task.max_attempts) == ("mail", 7, 9)
        assert task.idempotency_key == owned_key("token:shop", "order-1")
        assert task.wake_at == datetime(2031, 1, 31, 11, tzinfo=UTC)

    def test_null_equals_a_missing_member(self, shop: Shop) -> None:
        members = ("kwargs", "queue", "priority", "run_after", "max_attempts", "idempotency_key")

        assert shop.submit(**dict.fromkeys(members)).status_code == 201

    def test_run_after_seconds_count_from_database_clock(self, shop: Shop) -> None:
        shop.submit(run_after=90)

        task = Task.objects.get()
        assert task.wake_at == task.enqueued_at + timedelta(seconds=90)

    def test_task_enqueued_is_sent_once(self, shop: Shop, django_capture_on_commit_callbacks: Any) -> None:
        from jobqueue.conf.compat import task_enqueued

        seen = []

        def receiver(task_result: Any, **_: Any) -> None:
            seen.append((task_result.id, task_result.args))

        task_enqueued.connect(receiver)
        try:
            first = shop.submit(idempotency_key="k")
            shop.submit(idempotency_key="k")
        finally:
            task_enqueued.disconnect(receiver)
        assert seen == [(first.json()["id"], ["anna"])]


class TestIdempotencyKey:
    def test_repeat_returns_the_same_task(self, shop: Shop) -> None:
        first, again = (shop.submit(idempotency_key="k", kwargs={"times": 2}, run_after=9) for _ in range(2))

        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == first.json()
        assert Task.objects.count() == 1

    def test_repeat_ignores_order_and_null_members(self, shop: Shop) -> None:
        first = shop.submit(idempotency_key="k", args=[], kwargs={"name": "anna", "times": 2})
        body = {"kwargs": {"times": 2, "name": "anna"}, "idempotency_key": "k", "queue": None, "task": GREET}

        again = shop.post("submit/", body)

        assert (again.status_code, pk_of(again)) == (200, pk_of(first))

    @pytest.mark.parametrize(
        "change",
        [
            {"task": "tests.actors.Diary", "kwargs": None},
            {"args": ["bert"]},
            {"kwargs": {"times": 2}},
            {"kwargs": {"times": True}},
            {"queue": "mail"},
            {"priority": 1},
            {"run_after": 60},
            {"max_attempts": 2},
        ],
        ids=str,
    )
    def test_key_of_another_request_is_refused(self, shop: Shop, change: dict[str, Any]) -> None:
        asked = {"idempotency_key": "k", "kwargs": {"times": 1}}
        shop.submit(**asked)

        response = shop.submit(**asked | change)

        assert (response.status_code, wheres(response)) == (409, ["/idempotency_key"])
        assert "another request" in response.json()[0]["what"]
        assert Task.objects.count() == 1

    def test_key_of_two_requests_in_a_batch_is_refused(self, shop: Shop) -> None:
        body = [{"task": GREET, "args": [name], "idempotency_key": "k"} for name in ("anna", "bert")]

        response = shop.post("submit/batch/", body)

        assert (response.status_code, wheres(response)) == (409, ["/1/idempotency_key"])
        assert not Task.objects.exists()

    def test_key_belongs_to_one_token_and_survives_its_secret(self, shop: Shop, settings: Any) -> None:
        settings.TASKS = tasks_setting({"shop": token(), "other": token("other-secret")})
        other = Shop(Client(), "Bearer other-secret")

        first, second = shop.submit(idempotency_key="k"), other.submit(idempotency_key="k")

        assert (first.status_code, second.status_code) == (201, 201)
        assert pk_of(other.submit(idempotency_key="k")) == pk_of(second) != pk_of(first)
        settings.TASKS = tasks_setting({"shop": token("new-secret")})
        again = Shop(Client(), "Bearer new-secret").submit(idempotency_key="k")
        assert (again.status_code, pk_of(again)) == (200, pk_of(first))

    def test_key_belongs_to_one_user(self, shop: Shop) -> None:
        anna, bert = person("submit_task"), person("submit_task")

        responses = [caller.submit(idempotency_key="k") for caller in (shop, anna, bert, anna)]

        assert [response.status_code for response in responses] == [201, 201, 201, 200]
        assert pk_of(responses[3]) == pk_of(responses[1])

    def test_repeat_returns_an_ended_task(self, shop: Shop) -> None:
        first = shop.submit(idempotency_key="k")
        api.cancel(first.json()["id"])

        again = shop.submit(idempotency_key="k")

        assert (again.status_code, pk_of(again), again.json()["status"]) == (200, pk_of(first), "CANCELLED")

    def test_key_is_free_after_its_row_is_deleted(self, shop: Shop) -> None:
        first = shop.submit(idempotency_key="k")
        Task.objects.all().delete()

        assert pk_of(shop.submit(idempotency_key="k")) != pk_of(first)

    def test_repeat_of_a_task_pruned_during_the_request(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        first, engine = shop.submit(idempotency_key="k"), engine_for("default")
        enqueue_once = engine.enqueues.enqueue_once

        def enqueue_and_prune(*args: Any) -> Any:
            answers = enqueue_once(*args)
            Task.objects.all().delete()
            return answers

        monkeypatch.setattr(engine.enqueues, "enqueue_once", enqueue_and_prune)

        again = shop.submit(idempotency_key="k")

        assert (again.status_code, pk_of(again)) == (200, pk_of(first))

    def test_batch_with_a_conflict_enqueues_nothing(self, shop: Shop) -> None:
        shop.submit(idempotency_key="k")
        body = [{"task": GREET, "args": [name], "idempotency_key": name} for name in ("a", "k")]

        response = shop.post("submit/batch/", body)

        assert (response.status_code, wheres(response)) == (409, ["/1/idempotency_key"])
        assert Task.objects.count() == 1


class TestBatch:
    def test_tasks_are_enqueued_in_order(self, shop: Shop) -> None:
        body = [{"task": GREET, "args": [name], "priority": priority} for priority, name in enumerate("abc")]

        response = shop.post("submit/batch/", body)

        assert response.status_code == 201
        ids = [item["id"] for item in response.json()]
        assert [Task.objects.get(pk=pk).args for pk in ids] == [["a"], ["b"], ["c"]]
        assert all(item["created"] for item in response.json())

    @pytest.mark.parametrize(("size", "status"), [(0, 400), (1000, 201), (1001, 400)])
    def test_batch_has_up_to_a_thousand_submissions(self, shop: Shop, size: int, status: int) -> None:
        assert shop.post("submit/batch/", [{"task": GREET, "args": ["a"]}] * size).status_code == status
        assert Task.objects.count() == (size if status == 201 else 0)
        assert shop.post("submit/batch/", {"task": GREET}).status_code == 400

    def test_batch_lists_all_invalid_submissions(self, shop: Shop) -> None:
        good = {"task": GREET, "args": ["a"]}
        body = [good, {**good, "priority": 1000}, 7, {**good, "args": []}, {"task": "tests.tasks.echo"}]

        response = shop.post("submit/batch/", body)

        assert response.status_code == 400
        assert wheres(response) == ["/1/priority", "/2", "/4/task"]
        assert not Task.objects.exists()

    def test_batch_lists_all_invalid_arguments(self, shop: Shop) -> None:
        body = [{"task": GREET}, {"task": GREET, "args": ["a"]}, {"task": GREET, "kwargs": {"nam": "a"}}]

        response = shop.post("submit/batch/", body)

        assert (response.status_code, wheres(response)) == (400, ["/0/args", "/2/kwargs"])
        assert not Task.objects.exists()

    def test_batch_mixes_repeats_and_new_tasks(self, shop: Shop) -> None:
        def body(*keys: str) -> list[dict[str, Any]]:
            return [{"task": GREET, "args": [key], "idempotency_key": key} for key in keys]

        first = shop.post("submit/batch/", body("a", "b"))
        more = shop.post("submit/batch/", body("b", "c", "c"))
        again = shop.post("submit/batch/", body("b", "a"))

        assert [item["created"] for item in more.json()] == [False, True, False]
        assert [response.status_code for response in (first, more, again)] == [201, 201, 200]
        assert Task.objects.count() == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "where"),
        [
            ({"task": None}, "/task"),
            ({"task": "tests.tasks.unknown"}, "/task"),
            ({"task": "tests.tasks.add"}, "/task"),  # not allow_http=True
            ({"args": {}}, "/args"),
            ({"args": []}, "/args"),
            ({"args": ["a", "b"]}, "/args"),
            ({"args": ["\x00"]}, "/args"),
            ({"args": ["\ud800"]}, ""),
            ({"kwargs": []}, "/kwargs"),
            ({"args": [], "kwargs": {"nobody": 1}}, "/kwargs"),
            ({"kwargs": {"nobody": 1}}, ""),
            ({"queue": 1}, "/queue"),
            ({"queue": "nowhere"}, "/queue"),
            ({"queue": "default\n"}, "/queue"),
            ({"priority": "1"}, "/priority"),
            ({"priority": True}, "/priority"),
            ({"priority": 1.5}, "/priority"),
            ({"priority": 101}, "/priority"),
            ({"priority": 10**30}, "/priority"),
            ({"run_after": "tomorrow"}, "/run_after"),
            ({"run_after": "2031-01-31T12:00:00"}, "/run_after"),
            ({"run_after": "2031-13-31T12:00:00Z"}, "/run_after"),
            ({"run_after": "9999-12-31T12:00:00Z"}, "/run_after"),
            ({"run_after": 1e300}, "/run_after"),
            ({"run_after": True}, "/run_after"),
            ({"max_attempts": 0}, "/max_attempts"),
            ({"max_attempts": []}, "/max_attempts"),
            ({"idempotency_key": ""}, "/idempotency_key"),
            ({"idempotency_key": "k" * 256}, "/idempotency_key"),
            ({"idempotency_key": "\x00"}, "/idempotency_key"),
            ({"idempotency_key": 7}, "/idempotency_key"),
            ({"retries": 7}, "/retries"),
            ({"a/b~c": 7}, "/a~1b~0c"),
        ],
    )
    def test_invalid_member_is_located(self, shop: Shop, change: dict[str, Any], where: str) -> None:
        response = shop.submit(**change)

        assert (response.status_code, wheres(response)) == (400, [where])
        assert not Task.objects.exists()

    @pytest.mark.parametrize("name", ["x\n13:59:59 CRITICAL", "\x1b]0;pwned\x07", "tab\t", "\u2028", "\u202e", "\x85"])
    def test_queue_with_control_characters_is_refused(self, shop: Shop, settings: Any, name: str) -> None:
        """A site without QUEUES accepts every other name."""
        settings.TASKS = tasks_setting() | {"default": tasks_setting()["default"] | {"QUEUES": []}}

        response = shop.submit(queue=name)

        assert (response.status_code, wheres(response)) == (400, ["/queue"])
        assert "control characters" in response.json()[0]["what"]
        assert shop.submit(queue="mail ✉").status_code == 201

    def test_invalid_options_are_all_listed(self, shop: Shop) -> None:
        response = shop.submit(queue="nowhere", run_after="1969-01-01T00:00:00Z")

        assert wheres(response) == ["/queue", "/run_after"]

    @pytest.mark.parametrize(
        ("submission", "status", "where"),
        [
            ({"task": GREET, "retries": 1}, 400, "/retries"),
            ({"task": GREET}, 400, "/args"),
            ({"task": "x"}, 403, "/task"),
        ],
    )
    def test_batch_lists_the_first_problems(self, shop: Shop, submission: Any, status: int, where: str) -> None:
        """Checking 2 MB to the end once took 11 s."""
        response = shop.post("submit/batch/", [submission] * 1000)

        assert response.status_code == status
        assert wheres(response) == [*(f"/{n}{where}" for n in range(20)), ""]
        assert "first 20" in response.json()[-1]["what"]

    def test_long_problem_is_cut(self, shop: Shop) -> None:
        response = shop.submit(**{"x" * 10_000: 1})

        assert response.status_code == 400
        assert "xxx" in response.content.decode()
        assert len(response.content) < 3000

    @pytest.mark.parametrize(
        "body", [" ", "{", "[1]", "null", '{"task": NaN}', "[" * 10_000, "1" * 5000, b"\xff", '\ufeff{"task": "a"}']
    )
    def test_body_that_is_not_a_json_object_is_refused(self, shop: Shop, body: Any) -> None:
        assert shop.post("submit/", body).status_code == 400

    @pytest.mark.parametrize(
        "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
    )
    def test_other_content_types_are_refused(self, shop: Shop, content_type: str) -> None:
        body = f'{{"task": "{GREET}", "args": ["ä"]}}'.encode()

        assert shop.post("submit/", body, content_type).status_code == 415
        assert shop.post("submit/", body, "application/json; charset=UTF-8").status_code == 201

    @pytest.mark.parametrize("path", ["submit/", "submit/batch/"])
    def test_other_methods_are_refused(self, shop: Shop, path: str) -> None:
        response = shop.get(path)

        assert (response.status_code, response["Allow"]) == (405, "POST")

    def test_body_and_arguments_beyond_the_limits_are_refused(self, shop: Shop, settings: Any) -> None:
        response = shop.submit(args=["a" * 1000])

        assert (response.status_code, wheres(response)) == (413, ["/args"])
        assert shop.post("submit/", "x" * 20_000).status_code == 413  # not read
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
        for path in ("submit/", "submit/batch/"):
            assert shop.post(path, "x" * 101).status_code == 413

    @pytest.mark.parametrize("path", ["submit/", "submit/batch/", "cancel/"])
    def test_chunked_body_is_refused(self, shop: Shop, path: str) -> None:
        """Under WSGI, Django reads nothing of it."""
        path = f"tasks/{pk_of(shop.submit())}/cancel/" if path == "cancel/" else path
        chunks: dict[str, Any] = {"headers": {**shop.headers, "Transfer-Encoding": "chunked"}, "CONTENT_LENGTH": ""}

        response = shop.client.post(f"/jobqueue/{path}", {"tree": True}, "application/json", **chunks)

        assert response.status_code == 411
        assert not Task.objects.exclude(status="READY").exists()

    def test_invalid_content_length_is_refused(self, shop: Shop) -> None:
        wrong: dict[str, Any] = {"headers": shop.headers, "CONTENT_LENGTH": "many"}

        assert shop.client.post("/jobqueue/submit/", {}, "application/json", **wrong).status_code == 400

    @pytest.mark.parametrize("path", ["submit/", "cancel/"])
    def test_truncated_body_is_refused(self, shop: Shop, path: str) -> None:
        """The part that arrived may be valid: a lost `{"tree": true}` must not cancel without the tree."""
        body = f'{{"task": "{GREET}", "args": ["anna"]}}'.encode() if path == "submit/" else b""
        path = f"tasks/{TaskFactory().pk}/cancel/" if path == "cancel/" else path
        cut: dict[str, Any] = {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body) + 14)}

        response = shop.client.post(f"/jobqueue/{path}", {}, "application/json", headers=shop.headers, **cut)

        assert (response.status_code, response.json()[0]["what"]) == (400, "The body ended before its Content-Length.")
        assert not Task.objects.exclude(status="READY").exists()
        assert Task.objects.count() == (0 if path == "submit/" else 1)

    def test_body_without_content_length_is_limited(self) -> None:
        """Under ASGI, a body may come in chunks."""
        request = AsyncRequestFactory().post("/", b"x" * 101, "application/json")
        del request.META["CONTENT_LENGTH"]

        with pytest.raises(HttpError) as refused:
            read_body(request, max_bytes=100)

        assert refused.value.status == 413
        assert read_body(request, max_bytes=101) == b"x" * 101

    def test_unreachable_database_answers_503(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(*_: Any) -> Iterator[Any]:
            raise OperationalError("connection refused")

        monkeypatch.setattr(engine_for("default").enqueues, "enqueue_once", away)

        response = shop.submit()

        assert (response.status_code, response["Retry-After"]) == (503, "5")


class TestIdempotencyKeyHeader:
    @pytest.mark.parametrize("header", ["order-1", '"order-1"', " order-1 "])
    def test_header_is_the_key_of_the_submission(self, shop: Shop, header: str) -> None:
        body = {"task": GREET, "args": ["anna"]}

        first = shop.post("submit/", body, **{"Idempotency-Key": header})
        again = shop.post("submit/", body, **{"Idempotency-Key": header})
        member = shop.submit(idempotency_key="order-1")

        assert (first.status_code, again.status_code, member.status_code) == (201, 200, 200)
        assert pk_of(first) == pk_of(again) == pk_of(member)
        assert Task.objects.get().idempotency_key == owned_key("token:shop", "order-1")

    def test_header_that_differs_from_the_member_is_refused(self, shop: Shop) -> None:
        body = {"task": GREET, "args": ["anna"], "idempotency_key": "order-1"}

        assert shop.post("submit/", body, **{"Idempotency-Key": "order-1"}).status_code == 201
        refused = shop.post("submit/", body, **{"Idempotency-Key": "order-2"})

        assert refused.status_code == 400
        assert "differ" in refused.json()[0]["what"]
        assert Task.objects.count() == 1

    @pytest.mark.parametrize("header", ["", '""', "k" * 256])
    def test_header_that_cannot_be_a_key_is_refused(self, shop: Shop, header: str) -> None:
        refused = shop.post("submit/", {"task": GREET, "args": ["anna"]}, **{"Idempotency-Key": header})

        assert refused.status_code == 400
        assert "The header Idempotency-Key cannot be used" in refused.json()[0]["what"]
        assert not Task.objects.exists()

    def test_batch_refuses_the_header(self, shop: Shop) -> None:
        refused = shop.post("submit/batch/", [{"task": GREET, "args": ["anna"]}], **{"Idempotency-Key": "order-1"})

        assert refused.status_code == 400
        assert "idempotency_key of its own" in refused.json()[0]["what"]
        assert not Task.objects.exists()

    def test_compressed_body_is_refused(self, shop: Shop) -> None:
        refused = shop.post("submit/", {"task": GREET, "args": ["anna"]}, **{"Content-Encoding": "gzip"})

        assert refused.status_code == 415
        assert "gzip" in refused.json()[0]["what"]
