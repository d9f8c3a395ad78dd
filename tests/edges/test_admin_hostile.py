"""Every page of the admin shows hostile names and values as text."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.body_log import LogLine, as_text
from jobqueue.limit_models import Limit
from jobqueue.models import Executor, InboxMessage, Queue, Schedule, Task, TaskLog, TaskProgress
from tests.edges.test_security import IN_ADMIN, keys, member, path_of  # noqa: F401 - keys is a fixture
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


@pytest.mark.django_db
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_pages_show_hostile_names_and_values_as_text(keys: dict[str, Any], text: str) -> None:  # noqa: F811
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
    client, shown = member(is_superuser=True), 0

    for name in (*IN_ADMIN, "overview"):
        path = "/admin/jobqueue/" if name == "overview" else path_of(name, keys)
        response = client.get(path, {"name": text} if name.endswith("summary") else {})
        assert response.status_code in (200, 302, 403, 405), name
        content = response.content.decode()
        assert TAG not in content, name
        assert "142026" not in content, name  # the template was not run
        shown += "onerror=alert(1)&gt;" in content
    assert shown > 10
