"""Readers without `view_payload` see the class of an error, but nothing that its message or traceback quotes."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from jobqueue.admin.extensions import extensions, task_column
from jobqueue.models import Task
from jobqueue.values.causes import fingerprint
from tests.admin.pages import BOTH, LIST_URL, messages_of, status_of, task_url
from tests.cli.commands import jobqueue
from tests.factories import error, make_user
from tests.http.client import person

pytestmark = BOTH
CLASS, SECRET = "shop.errors.DuplicateEmail", "joe@example.com"
MESSAGE = f"duplicate key (email)=({SECRET})"
ALL = {"action": "requeue_selected", "_selected_action": "all", "select_across": "1"}


@pytest.fixture
def row(make):
    """A failed task, of which the message and the traceback of the error quote an address."""
    return make(
        failed=True, errors=[error(MESSAGE, exception_class_path=CLASS)],
        cause=fingerprint("shop.tasks.send_receipt", CLASS, MESSAGE),
    )  # fmt: skip


@pytest.fixture
def reader():
    def log_in(*permissions):
        client = Client()
        client.force_login(make_user("view_task", "view_queue", *permissions))
        return client

    return log_in


@pytest.fixture
def at_list(backend):
    def get(client, **query):
        return client.get(LIST_URL, {"backend": backend, **query}, follow=True)

    return get


def listed(response):
    return [row.pk for row in response.context["cl"].result_list]


def addresses(row):
    """Yield every page that shows errors or causes."""
    backend = f"backend={row.backend}"
    yield f"/admin/jobqueue/?{backend}"
    yield f"/admin/jobqueue/task/failures/?{backend}"
    yield f"/admin/jobqueue/task/summary/?{backend}&name={row.task_type}"
    yield f"/admin/jobqueue/queue/summary/?{backend}&name={row.queue_name}"
    yield f"{LIST_URL}?{backend}"
    yield f"{LIST_URL}?{backend}&status=FAILED"
    yield f"{LIST_URL}?{backend}&status=FAILED&q=error:duplicateemail"
    yield task_url(row)
    yield f"/jobqueue/tasks/{row.pk}/"


def test_error_is_hidden_on_every_page_without_view_payload(row, reader):
    hidden, payload_reader = reader("requeue_task", "cancel_task"), reader("view_payload")

    for address in addresses(row):
        page = unescape(hidden.get(address, follow=True).content.decode())
        assert "DuplicateEmail" in page, address
        assert SECRET not in page, address
        assert "Traceback" not in page, address
        assert row.cause not in page, address
        assert SECRET in unescape(payload_reader.get(address, follow=True).content.decode()), address


@pytest.mark.parametrize("name", ["GiveUp", "UndecodableTask", "DuplicateEmail"])
def test_sentence_about_a_failed_task_does_not_quote_the_message(make, reader, name):
    row = make(failed=True, errors=[error(MESSAGE, exception_class_path=f"jobqueue.exceptions.{name}")])

    pages = [reader(*permissions).get(task_url(row)).content.decode() for permissions in ((), ("view_payload",))]

    sentences = [re.findall(r'jq-sentence">([^<]*)', page)[0].strip() for page in pages]
    assert sentences[0].endswith("hidden")
    assert sentences[1].endswith(MESSAGE)


def test_http_leaves_the_message_out(row):
    (entry,) = person("view_task").get(f"tasks/{row.pk}/").json()["errors"]
    assert (entry["exception"], "message" in entry) == (CLASS, False)

    (entry,) = person("view_task", "view_payload").get(f"tasks/{row.pk}/").json()["errors"]
    assert entry["message"] == MESSAGE


def test_confirmation_of_an_action_does_not_quote_the_message(row, make, reader, backend):
    make(failed=True)
    address = f"{LIST_URL}?backend={backend}&status=FAILED"

    pages = [
        reader("requeue_task", *permissions).post(address, ALL).content.decode()
        for permissions in ((), ("view_payload",))
    ]

    assert [SECRET in page for page in pages] == [False, True]
    assert "DuplicateEmail: hidden" in pages[0]


def test_search_for_an_error_compares_only_classes_without_view_payload(row, reader, at_list):
    client = reader()

    assert listed(at_list(client, q="error:joe")) == []
    assert listed(at_list(client, q=f"error:{row.cause}")) == []
    response = at_list(client, q="error:duplicateemail")
    assert listed(response) == [row.pk]
    assert "failed tasks with “duplicateemail” in the class of their error" in response.content.decode()
    assert "lack the permission to see messages of errors" in response.content.decode()
    assert listed(at_list(client, q="error:")) == []
    assert listed(at_list(reader("view_payload"), q="error:joe")) == [row.pk]


def test_search_for_an_error_finds_failed_tasks_only(make, reader, at_list):
    make(successful=True, errors=[error(exception_class_path=CLASS)])

    assert listed(at_list(reader(), q="error:DuplicateEmail", status="SUCCESSFUL")) == []


def test_filter_by_a_guessed_cause_finds_nothing_without_view_payload(row, make, reader, at_list):
    """The hash of a guess would tell whether a task failed with it."""
    make(failed=True)
    client = reader()

    for query in ({"status": "FAILED"}, {}, {"status": "FAILED", "q": "task:send_receipt"}):
        for cause in (row.cause, f"{row.cause},other"):
            response = at_list(client, cause=cause, **query)
            assert listed(response) == []
            assert "so causes were not searched" in response.content.decode()
            assert "joe" not in response.content.decode()
    assert listed(at_list(reader("view_payload"), cause=row.cause, status="FAILED")) == [row.pk]


def test_action_on_a_guessed_cause_changes_nothing_without_view_payload(row, reader, backend):
    client = reader("requeue_task")
    address = f"{LIST_URL}?backend={backend}&status=FAILED&cause={row.cause}"

    asked = client.post(address, ALL)

    assert asked.context["number"] == 0
    client.post(address, dict(asked.context["hidden"]) | {"confirmed": "1"})
    assert status_of(row) == "FAILED"


def test_column_of_a_site_gets_no_message_without_view_payload(row, reader, at_list):
    def quote(task: Any, arguments: Any) -> str:
        return f"quoted: {task.error_message}"

    task_column("what")(quote)
    try:
        pages = [at_list(reader(*permissions)).content.decode() for permissions in ((), ("view_payload",))]
    finally:
        extensions.columns.popitem()

    assert ["quoted: hidden" in page for page in pages] == [True, False]
    assert [SECRET in page for page in pages] == [False, True]


def test_filter_of_a_bulk_action_is_hidden_on_its_task_and_kept_in_the_log(row, make, reader, backend):
    make(failed=True, cause=row.cause)
    client = reader("requeue_task", "view_payload")
    address = f"{LIST_URL}?backend={backend}&status=FAILED&cause={row.cause}"
    fields = dict(client.post(address, ALL).context["hidden"]) | {"rate": "100"}

    response = client.post(address, fields)

    assert messages_of(response) == ["This runs in the background; cancel this task to stop it."]
    task = Task.objects.using(backend).get(task_type="jobqueue.bulk_action")
    for page in ("change", "history"):
        content = reader().get(task_url(task, page)).content.decode()
        assert "Requeue 2 tasks." in content
        assert row.cause not in content
    assert row.cause in client.get(task_url(task)).content.decode()
    (entry,) = LogEntry.objects.filter(object_id=None)
    assert f"cause={row.cause}" in entry.change_message


def test_command_line_hides_nothing(row):
    assert SECRET in jobqueue("show", row.pk).out
    assert SECRET in jobqueue("list", "--backend", row.backend, "--error", "joe").out
