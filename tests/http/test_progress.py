"""{% task_progress %} and {% task_status %}: the tags, the view, and its stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core import signing
from django.test import AsyncClient, Client
from django.utils import timezone

from jobqueue.http import progress
from jobqueue.models import Task, TaskProgress
from tests.factories import TaskFactory, now

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.progress_site")]


def report(task: Any, done: float, total: float | None = None, note: str = "") -> None:
    values = {"claim_number": 1, "done": done, "total": total, "note": note, "reported_at": now()}
    TaskProgress.objects.update_or_create(task_id=task.pk, defaults=values)


def ask(client: Client, task: Any, **headers: str) -> dict[str, Any]:
    response = client.get(progress.address(task.pk, "default"), headers=headers)
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Cache-Control"] == "no-store"
    view: dict[str, Any] = json.loads(response.content)
    return view


def test_page_shows_progress_and_address_of_a_live_task(client: Client) -> None:
    task = TaskFactory.create(running=True)
    report(task, 45, 100, "row <45>")

    html = client.get(f"/imports/{task.pk}/").content.decode()

    assert '<progress role="progressbar" aria-label="Progress of the import" value="45" max="100"></progress>' in html
    assert '<span data-jobqueue="text" role="status" aria-live="polite">Running</span>' in html
    assert '<span data-jobqueue="progress">45 of 100 (45 %)</span>' in html
    assert '<span data-jobqueue="note">row &lt;45&gt;</span>' in html
    assert html.count(' data-state="RUNNING" data-jobqueue-task="/progress/') == 2
    assert "style=" not in html
    assert "data-jobqueue-stream" not in html
    (first, _second) = re.findall(r'data-jobqueue-task="([^"]+)"', html)
    assert client.get(first).json()["progress"] == "45 of 100 (45 %)"


@pytest.mark.parametrize(
    ("state", "text", "is_final"),
    [
        ("scheduled", "Waiting", False),
        ("suspended", "Running", False),
        ("successful", "Successful", True),
        ("failed", "Failed", True),
        ("cancelled", "Cancelled", True),
    ],
)
def test_states_have_words_for_visitors(client: Client, state: str, text: str, is_final: bool) -> None:
    task = TaskFactory.create(**{state: True})

    view = ask(client, task)
    html = client.get(f"/imports/{task.pk}/").content.decode()

    assert (view["text"], view["is_final"]) == (text, is_final)
    assert (">" + text + "<") in html
    assert ("data-jobqueue-task" in html) is not is_final


def test_task_that_is_deleted_is_final(client: Client) -> None:
    task = TaskFactory.create(running=True)
    address = progress.address(task.pk, "default")
    Task.objects.all().delete()

    assert client.get(address).json() == {
        "state": "DELETED",
        "text": "No longer stored",
        "is_final": True,
        "value": None,
        "max": None,
        "progress": "",
        "note": "",
    }


def test_note_has_no_secret_of_the_arguments(client: Client) -> None:
    task = TaskFactory.create(running=True, kwargs={"api_key": "k-4711-secret"})
    report(task, 1, note="Use k-4711-secret")

    assert "k-4711-secret" not in ask(client, task)["note"]


def test_note_of_celery_is_not_for_visitors(client: Client) -> None:
    task = TaskFactory.create(running=True)
    report(task, 3, 10, '{"state": "PROGRESS", "meta": {"current": 3, "total": 10, "file": "/srv/private.csv"}}')
    view = ask(client, task)
    assert (view["progress"], view["note"]) == ("3 of 10 (30 %)", "")


def test_token_that_is_wrong_old_or_for_something_else_is_refused(client: Client, monkeypatch: Any) -> None:
    task = TaskFactory.create(running=True)
    good = progress.address(task.pk, "default")
    other = "/progress/" + signing.dumps([str(task.pk), "default"], salt="another") + "/"

    refused = [client.get(address).status_code for address in (other, good[:-2] + "x/", f"/progress/{task.pk}/")]
    monkeypatch.setattr(progress, "MAX_AGE_SECONDS", -1)

    assert [*refused, client.get(good).status_code] == [403] * 4
    assert client.post(good).status_code == 405


def test_wsgi_answers_once_also_who_asks_for_a_stream(client: Client) -> None:
    assert ask(client, TaskFactory.create(running=True), accept="text/event-stream")["state"] == "RUNNING"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "READ_SECONDS", 0.01)
    yield
    progress._reader.submit(lambda: None).result()  # it has closed its connections


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick")
def test_stream_sends_each_change_and_ends_with_the_task() -> None:
    task = TaskFactory.create(running=True)
    report(task, 1, 4)

    def end() -> None:
        Task.objects.filter(pk=task.pk).update(status="SUCCESSFUL", finished_at=timezone.now())

    async def read() -> list[str]:
        response: Any = await AsyncClient().get(
            progress.address(task.pk, "default"), headers={"accept": "text/event-stream"}
        )
        assert response.headers["Content-Type"] == "text/event-stream"
        events = []
        async for event in response.streaming_content:
            events.append(event.decode())
            if len(events) == 1:
                await sync_to_async(report)(task, 3, 4, "almost")
            elif len(events) == 2:
                await sync_to_async(end)()
        return events

    events = [json.loads(event.removeprefix("data: ")) for event in async_to_sync(read)()]

    assert [(event["state"], event["value"], event["note"]) for event in events] == [
        ("RUNNING", "1", ""),
        ("RUNNING", "3", "almost"),
        ("SUCCESSFUL", "3", "almost"),
    ]


@pytest.mark.usefixtures("quick")
def test_end_of_a_stream_leaves_the_others_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(progress, "connections", SimpleNamespace(close_all=lambda: closed.append("closed")))
    monkeypatch.setattr(progress, "read_view", lambda pk, _: progress.View(state="X", text=pk, is_final=pk == "short"))

    async def read() -> list[str]:
        streams: list[Any] = [progress._events(pk, "default", "en") for pk in ("long", "short")]
        long, short = streams
        await anext(long)
        assert [event async for event in short]
        await sync_to_async(progress._reader.submit(int).result)()
        before = [*closed]
        await long.aclose()
        return before

    assert async_to_sync(read)() == []
    progress._reader.submit(int).result()
    assert closed == ["closed"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick")
def test_page_under_asgi_asks_for_a_stream_which_a_proxy_keeps_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "STREAM_SECONDS", 0.4)
    task = TaskFactory.create(running=True)

    async def read() -> tuple[str, list[bytes]]:
        client = AsyncClient()
        page = await client.get(f"/imports/{task.pk}/")
        response: Any = await client.get(progress.address(task.pk, "default"), headers={"accept": "text/event-stream"})
        return page.content.decode(), [event async for event in response.streaming_content]

    html, events = async_to_sync(read)()

    assert html.count(" data-jobqueue-stream") == 2
    assert events[1:] == [b": \n\n"] * 2
