"""Names that look like SQL, patterns or reserved words are plain names of queues, tasks and keys."""

from __future__ import annotations

import io
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.core.management import call_command
from django.db import connection

from jobqueue import api
from jobqueue.executor.database.connection import DatabaseState
from jobqueue.executor.listener import Listener
from jobqueue.models import Queue, Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.conftest import start  # noqa: F401 - a fixture
from tests.executor.harness import Start, on_postgresql, row_of, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql

NAMES = {
    "a statement": "'; DROP TABLE jobqueue_task; --",
    "an identifier": '"; DROP TABLE jobqueue_task; --',
    "a parameter": "%s %(name)s {0} {name} $1",
    "a pattern": "%_*[a-z]?",
    "an escape": "\\'\\\\E'\\x00'",
    "an array": '{a,"b",NULL}',
    "nothing": "NULL",
    "two words": "default default",
    "a blank": " ",
    "lines": "a\nb\r\tc",
    "an order": "-rank",
    "a path": "../../etc/passwd",
    "our probe": "!probe",
    "our word": "!news",
    "right to left": "\u202eeuqeuq\u2066",
    "beyond the plane": "\U0001f9e8" * 128,
}
FAR_SECONDS = 600.0


def test_queue_of_any_name_is_announced_and_served(start: Start) -> None:  # noqa: F811
    """The next poll is far away, so a task that starts proves that its notification arrived."""
    start(poll_interval=FAR_SECONDS)
    wait_for_status(tasks.add.enqueue(0), Status.SUCCESSFUL)  # the executor listens now, or missed none
    for name in NAMES.values():
        for number in range(2):
            wait_for_status(tasks.add.using(queue_name=name).enqueue(number), Status.SUCCESSFUL)

    assert set(Task.objects.values_list("queue_name", flat=True)) == {"default", *NAMES.values()}


def test_pause_and_limit_of_any_name_are_shown_and_of_that_queue_alone(start: Start) -> None:  # noqa: F811
    for name in NAMES.values():
        api.pause(name)
        api.limit_queue(name, 1)
    kept = [tasks.add.using(queue_name=name).enqueue(1) for name in NAMES.values()]
    start(queues=("default", *NAMES.values()), poll_interval=0.05)

    wait_for_status(tasks.add.enqueue(2), Status.SUCCESSFUL)
    assert {row_of(result).status for result in kept} == {Status.READY}
    out = io.StringIO()
    call_command("jobqueue", "status", "--json", "--backend", "default", stdout=out)
    (backend,) = json.loads(out.getvalue())["backends"]
    assert {queue["name"] for queue in backend["queues"]} >= set(NAMES.values())

    for name, result in zip(NAMES.values(), kept, strict=True):
        api.resume(name)
        wait_for_status(result, Status.SUCCESSFUL)
        assert Queue.objects.filter(paused_at=None).count() == Task.objects.successful().count() - 1


def test_key_of_any_name_is_one_tasks_own(start: Start) -> None:  # noqa: F811
    for name in NAMES.values():
        first = tasks.add.using(key=name, metadata={name: name}).enqueue(1)
        assert tasks.add.using(key=name).enqueue(2).id == first.id
        assert row_of(first).metadata == {name: name}
    assert Task.objects.count() == len(NAMES)

    start()

    wait_until(lambda: Task.objects.successful().count() == len(NAMES), "the end of all")


def test_task_of_any_unknown_type_waits_for_its_code(start: Start) -> None:  # noqa: F811
    with connection.cursor() as cursor:
        for name in NAMES.values():
            cursor.execute("SELECT jobqueue_create_task(NULL, %s)", [name])
    start()
    wait_for_status(tasks.add.enqueue(1), Status.SUCCESSFUL)

    rows = Task.objects.awaiting_code()
    wait_until(lambda: rows.count() == len(NAMES), "all to wait for code")

    assert {row.task_type for row in rows} == set(NAMES.values())
    unknown = {error["exception_class_path"] for row in rows for error in row.errors}
    assert unknown == {"jobqueue.exceptions.UnknownTask"}


def test_backend_of_two_words_gets_its_own_notifications() -> None:
    heard: list[str] = []
    engine: Any = SimpleNamespace(alias="two words")
    cancel, anything = partial(heard.append, "cancel"), partial(heard.append, "anything")
    listener = Listener(engine, heard.append, cancel, heard.append, anything, DatabaseState(), heard.append)

    payloads = ("emails", "!cancel", "!probe-others", "", "!admit reports", "!admit ")
    for payload in ("two emails", *(f"two words {word}" for word in payloads)):
        listener._pass_on(payload)

    assert heard == ["emails", "cancel", "", "reports", ""]
