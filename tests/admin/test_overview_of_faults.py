"""What stops the queue is on the overview as well as in `doctor`, with what to do."""

from __future__ import annotations

import html

import pytest
from django.db import OperationalError, connections

from jobqueue.operations.overview import findings, server_findings
from tests.api.limited import waiting
from tests.cli.commands import jobqueue
from tests.factories import ExecutorFactory, TaskFactory, ago

pytestmark = pytest.mark.django_db


def execute(*statements):
    with connections["default"].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def hold_key_without_code():
    ExecutorFactory.create()
    waiting(task_type="shop.removed", status="AWAITING_CODE", awaits_code_since=ago(600), counts_while_waiting=True)
    waiting()


def wait_in_calls():
    ExecutorFactory.create(waiting_for_connections=40, name="web-1")


FAULTS = {
    "table": (lambda: execute("DROP TABLE jobqueue_tasklog"), "lacks tables (jobqueue_tasklog)."),
    "functions": (
        lambda: execute("DROP FUNCTION jobqueue_enqueue, jobqueue_enqueue_plain"),
        "lacks functions (jobqueue_enqueue(), jobqueue_enqueue_plain()). Run: manage.py migrate jobqueue",
    ),
    "index": (
        lambda: execute("DROP INDEX jobqueue_task_tags"),
        "lacks what migrations install: jobqueue_task_tags.",
    ),
    "migration": (
        lambda: execute("DELETE FROM django_migrations WHERE app = 'jobqueue' AND name LIKE '0020%'"),
        "lacks migrations (0020_status_check). Run: manage.py migrate jobqueue",
    ),
    "invalid index": (
        lambda: execute("UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'jobqueue_inbox_unread'::regclass"),
        "the index jobqueue_inbox_unread of jobqueue_inboxmessage is INVALID",
    ),
    "sequence": (
        lambda: execute(
            "INSERT INTO jobqueue_counterdelta (id, backend, queue_name, task_type, at) "
            "VALUES (99999999, 'default', 'default', 'shop.tasks.add', now())"
        ),
        "the sequence of jobqueue_counterdelta is behind its rows",
    ),
    "backend": (
        lambda: TaskFactory.create(backend="defualt"),
        "tasks of the backend 'defualt', which TASKS does not have, never run.",
    ),
    "held key": (
        hold_key_without_code,
        "is used up by 1 task that cannot end soon. shop.removed",
    ),
    "connections": (wait_in_calls, "40 tasks wait for database connections"),
}


@pytest.mark.parametrize(("break_queue", "words"), FAULTS.values(), ids=FAULTS)
def test_fault_is_on_the_overview_and_in_doctor(staff, client, break_queue, words):
    break_queue()

    page = html.unescape(client.get("/admin/jobqueue/?backend=default").content.decode())
    entries = jobqueue("doctor", "--backend", "default", "--json").json

    assert words in page
    (entry,) = [entry for entry in entries if words in entry["text"]]
    assert entry["level"] != "ok"


@pytest.mark.parametrize("kind", ["queues", "executors"])
def test_many_problems_of_one_kind_are_counted(staff, client, kind):
    for number in range(findings.MAX_NAMES + 3):
        if kind == "queues":
            TaskFactory.create(queue_name=f"q{number}")
        else:
            lost = ExecutorFactory.create(lost=True, name=f"web-{number}")
            TaskFactory.create(running=True, executor_id=lost.pk)

    page = client.get("/admin/jobqueue/?backend=default").content.decode()
    output = jobqueue("doctor", "--backend", "default").out

    words = "and no executor serves it" if kind == "queues" else "has sent no heartbeat"
    more = "Backend default: 3 more problems like these." if kind == "queues" else " more problems like these."
    for text in (page, output):
        assert " ".join(text.split()).count(words) == findings.MAX_NAMES
        assert more in " ".join(text.split())


@pytest.mark.django_db(databases=["default", "sqlite"])
def test_overview_names_a_database_that_is_unreachable(staff, client, monkeypatch):
    def refuse():
        raise OperationalError("connection refused\nIs the server running?")

    monkeypatch.setattr(connections["sqlite"], "cursor", refuse)
    monkeypatch.setattr(connections["sqlite"], "ensure_connection", refuse)

    page = html.unescape(client.get("/admin/jobqueue/?backend=sqlite").content.decode())

    assert "Backend sqlite: database 'sqlite' is unreachable: connection refused" in page
    assert "Start it, or correct DATABASES['sqlite']." in page


def test_overview_names_the_session_that_has_locked_the_tasks(staff, client, monkeypatch):
    monkeypatch.setattr(server_findings, "LOCK_LONG_SECONDS", 0.0)
    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN; LOCK TABLE jobqueue_task IN ACCESS EXCLUSIVE MODE")
        execute("SET LOCAL lock_timeout = '2s'")
        page = html.unescape(client.get("/admin/jobqueue/?backend=default").content.decode())
    finally:
        other.close()

    assert "keeps the table jobqueue_task locked (AccessExclusiveLock). Executors wait for it." in page
    assert "SELECT pg_terminate_backend(" in page
