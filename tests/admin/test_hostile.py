"""Every page, form and confirmation of the admin shows hostile names and values as text."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME

from jobqueue.models import Executor, InboxMessage, Limit, Queue, Schedule, Task, TaskLog, TaskProgress
from jobqueue.values.reports import LogLine, as_text
from tests.api.test_security import IN_ADMIN, keys, member, path_of  # noqa: F401 - keys is a fixture
from tests.factories import now

TAG = "<img src=x onerror=alert(1)>"
HOSTILE = {
    "a tag": TAG,
    "the end of an attribute": f"'\">{TAG}",
    "the end of a script": f"</script>{TAG}",
    "a template": "{{ 7|add:7 }}{{ 2026 }}" + TAG,
    "a long word": "x" * 100 + TAG,
    "text from right to left": "\u202e\u2066" + TAG,
    "a percent sign": "%s %(name)s %%" + TAG,
}


@pytest.fixture(params=HOSTILE.values(), ids=list(HOSTILE))
def text(request: pytest.FixtureRequest, keys: dict[str, Any]) -> str:  # noqa: F811
    """Write a hostile text into all rows."""
    text = str(request.param)
    error = {"attempt": 1, "claim_number": 0, "exception_class_path": text, "message": text, "traceback": text}
    Task.objects.update(
        queue_name=text, task_type=text, args=[text], kwargs={text: text}, metadata={text: text}, tags=[text],
        errors=[error], cause=text[:16], worker_ids=[text], inner_state={text: text},
    )  # fmt: skip
    InboxMessage.objects.update(body={text: text}, dedupe_key=text)
    TaskProgress.objects.create(task_id=keys["task"], claim_number=0, done=1, note=text, reported_at=now())
    lines = as_text([LogLine(at=0.0, level=text, logger=text, message=text)])
    TaskLog.objects.create(task_id=keys["task"], claim_number=0, dropped=0, lines=lines)
    Executor.objects.update(name=text, host=text, queues=[text], versions={text: text})
    Queue.objects.update(name=text, pause_reason=text, paused_by=text)
    Schedule.objects.update(
        name=text, declared_at=text, pause_reason=text, new_task={"args": [text], "kwargs": {text: text}}
    )
    Limit.objects.update(key=f"{text}:", changed_by=text)
    return text


@pytest.mark.django_db
def test_pages_show_hostile_names_and_values_as_text(keys: dict[str, Any], text: str) -> None:  # noqa: F811
    client, checked = member(is_superuser=True), 0
    for name in (*IN_ADMIN, "overview"):
        path = "/admin/jobqueue/" if name == "overview" else path_of(name, keys)
        response = client.get(path, {"name": text} if name.endswith("summary") else {})
        assert response.status_code in (200, 302, 403, 405), name
        checked += shows_as_text(response, name)
    assert checked > 10


@pytest.mark.django_db
def test_confirmations_show_hostile_names_and_values_as_text(keys: dict[str, Any], text: str) -> None:  # noqa: F811
    client, across = member(is_superuser=True), {ACTION_CHECKBOX_NAME: "all", "select_across": "1"}
    posts: list[tuple[str, dict[str, Any]]] = [
        ("task_delete", {}),
        ("queue_changelist", {"row": f"pause:{text}"}),
        ("queue_changelist", {"action": "limit", "queue": text, "max_running": text, "confirmed": "1"}),
        ("executor_changelist", {"action": "stop_selected", ACTION_CHECKBOX_NAME: keys["executor"]}),
        ("schedule_changelist", {"action": "run_schedules", ACTION_CHECKBOX_NAME: keys["schedule"]}),
        ("schedule_changelist", {"action": "pause_schedules", ACTION_CHECKBOX_NAME: keys["schedule"]}),
    ]
    for action in ("requeue_selected", "cancel_selected", "discard_selected", "delete_ended"):
        posts += [
            ("task_changelist", {"action": action, **across}),
            ("task_changelist", {"action": action, **across, "rate": text, "bounds": text}),
            ("task_changelist", {"action": action, ACTION_CHECKBOX_NAME: [keys["task"], keys["task_id"]]}),
        ]
    for name, data in posts:
        path = path_of(f"admin:jobqueue_{name}", keys | {"task": keys["task_id"]})
        response = client.post(f"{path}?{urlencode({'queue': text})}" if "select_across" in data else path, data)
        assert response.status_code == 200, (name, data)
        assert shows_as_text(response, name), (name, data)


@pytest.mark.django_db
def test_forms_show_hostile_values_and_errors_as_text(keys: dict[str, Any], text: str) -> None:  # noqa: F811
    client = member(is_superuser=True)
    Task.objects.filter(pk=keys["task_id"]).update(task_type="tests.tasks.greet")
    Task.objects.filter(pk=keys["task"]).update(task_type="tests.actors.Diary")
    Schedule.objects.update(declared_at="")  # those of the code have no form
    call = {"task": "tests.tasks.greet", "argument-name": text, "argument-times": text, "argument-password": text}
    timing = dict.fromkeys(("name", "expression", "timezone", "unit", "overlap", "catch_up", "until"), text) | {
        "kind": "cron"
    }
    options = dict.fromkeys(("queue_name", "priority", "max_attempts", "run_after", "key", "backend"), text)
    copy = f"?copy={keys['task_id']}"
    posts: dict[str, tuple[str, dict[str, str]]] = {
        "enqueue": ("task_enqueue", call | options),
        "add a schedule": ("schedule_add", call | timing),
        "change a schedule": ("schedule_edit", call | timing),
        "preview of a schedule": ("schedule_preview", call | timing),
        "pause a schedule": ("schedule_pause", {"reason": text, "until": text}),
        "backfill": ("schedule_backfill", {"start": text, "end": text}),
        "limit": ("limit_change", {"number": text}),
        "send": ("task_send", {"body": text}),
    }
    responses = {
        "copy": client.get(path_of("admin:jobqueue_task_enqueue", keys) + copy),
        "copy with errors": client.post(path_of("admin:jobqueue_task_enqueue", keys) + copy, call | options),
        "search": client.get(path_of("admin:jobqueue_task_changelist", keys), {"q": text}, follow=True),
        **{what: client.post(path_of(f"admin:jobqueue_{name}", keys), data) for what, (name, data) in posts.items()},
    }
    assert {what for what, response in responses.items() if response.status_code != 200} == set()
    checked = {what for what, response in responses.items() if shows_as_text(response, what)}
    assert responses.keys() - checked == {"preview of a schedule"}  # its errors repeat no value


def shows_as_text(response: Any, name: str) -> bool:
    """Whether a page shows the hostile text. It must neither contain the tag nor run the template."""
    content = response.content.decode()
    assert TAG not in content, name
    assert "142026" not in content, name
    return "onerror=alert(1)&gt;" in content
