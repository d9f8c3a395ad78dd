"""Failures by cause: the page, the filter of the list, and the options of `jobqueue requeue`."""

from __future__ import annotations

import re

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.admin import failures as admin_failures
from jobqueue.operations.list import failures
from jobqueue.values.causes import fingerprint
from tests.admin.pages import BOTH, LIST_URL, SCRIPT, messages_of, reload, status_of
from tests.cli.commands import jobqueue
from tests.factories import ago, error, make_user

pytestmark = BOTH
PAGE = f"{LIST_URL}failures/"


@pytest.fixture
def fail(make):
    """Create a failed task with an error and its cause."""

    def create(message="order 1 has no address", class_path="shop.errors.BadOrder", **columns):
        task_type = columns.setdefault("task_type", "shop.tasks.send_receipt")
        entry = error(message, exception_class_path=class_path)
        return make(failed=True, errors=[entry], cause=fingerprint(task_type, class_path, message), **columns)

    return create


def rows_of(content):
    """Return number and title of each cause of a page."""
    return re.findall(r'jq-cause-number"[^>]*>([^<]*)</a>\s*<div[^>]*><span class="jq-error">([^<]*)<', content)


def test_page_groups_failures_by_task_class_and_message(fail, show):
    for number in range(3):
        fail(f"order {number} has no address")
    fail("order 5 has no address", task_type="shop.tasks.ship")
    fail("order 5 has no address", "builtins.KeyError")

    content = show("task/failures/")

    title = "BadOrder: order # has no address"
    assert sorted(rows_of(content)) == [("1", title), ("1", "KeyError: order # has no address"), ("3", title)]
    assert rows_of(content)[0] == ("3", title)
    assert rows_of(show("")) == rows_of(content)


def test_page_shows_times_traceback_and_hours(fail, show):
    fail("order 1", finished_at=ago(3 * 86_400))
    newest = fail("order 2", finished_at=ago(60))

    content = show("task/failures/")

    assert re.search(r"last <time[^>]*>60 s ago", content)
    assert re.search(r"first <time[^>]*>3 d ago", content)
    assert "BadOrder" in content
    assert "SMTPServerBusy: order 2" in content
    assert f"/admin/jobqueue/task/{newest.pk}/change/" in content
    assert "1 failed in the last 24 hours." in content


def test_chart_of_hours_has_all_failures_in_a_zone_with_half_an_hour(fail, show, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    for minutes in range(5, 300, 20):
        fail("order 1", finished_at=ago(60 * minutes))

    assert "15 failed in the last 24 hours." in show("task/failures/")


def test_causes_have_pages_in_the_order_of_their_last_failures(fail, show, monkeypatch):
    monkeypatch.setattr(admin_failures, "CAUSES_SHOWN", 2)
    for age, word in enumerate(("roof", "door", "lamp", "stove", "table")):
        for _ in range(1 + (word == "door")):
            fail(f"the {word} is broken", finished_at=ago(60 * age + 60))

    def titles(content):
        return [(number, title.split()[2]) for number, title in rows_of(content)]

    first, second = show("task/failures/"), show("task/failures/", p="2")

    assert titles(first) == [("2", "door"), ("1", "roof")]
    assert titles(second) == [("1", "lamp"), ("1", "stove")]
    assert "Causes 1 to 2 of 5. Those that failed last are on the first page." in first
    assert "Causes 3 to 4 of 5." in second
    links = re.findall(r'<a href="([^"]*failures/\?p=[^"]*)">(\d)</a>', second)
    assert [number for _address, number in links] == ["1", "3"]
    assert titles(show("task/failures/", p="3")) == titles(show("task/failures/", p="99")) == [("1", "table")]
    assert titles(show("task/failures/", p="x")) == titles(first)
    monkeypatch.setattr(admin_failures, "CAUSES_SHOWN", 5)
    assert "The most frequent causes come first." in show("task/failures/")
    assert 'aria-label="Pages"' not in show("task/failures/")


def test_page_without_failures_says_so(show, make):
    make()
    assert "No failed task." in show("task/failures/")


def test_number_opens_the_list_of_these_tasks(fail, show, client):
    other, wanted = fail("other"), fail("order 1")
    hrefs = re.findall(r'jq-cause-number" href="([^"]*)', show("task/failures/"))
    address = next(href for href in hrefs if wanted.cause in href).replace("&amp;", "&")

    content = client.get(address).content.decode()

    assert str(wanted.pk) in content
    assert str(other.pk) not in content
    assert "BadOrder: order #" in content


@pytest.mark.parametrize(
    ("action", "forecast", "button", "reply", "status"),
    [
        ("requeue", "3 failed or cancelled tasks will be requeued", "Requeue 3 tasks", "Requeued 3 tasks.", "READY"),
        ("discard", "3 failed tasks will be kept as cancelled", "Discard 3 tasks", "Discarded 3 tasks.", "CANCELLED"),
    ],
)
def test_button_asks_and_then_changes_exactly_these_tasks(
    fail, client, show, staff, backend, action, forecast, button, reply, status
):
    failed, other = [fail(f"order {number}") for number in range(3)], fail("other")
    page = show("task/failures/")
    assert f"{action.capitalize()} these 3…" in page
    value = f"{action}_selected"
    assert f'name="action" value="{value}"' in page
    fields = {"action": value, "select_across": "1", "_selected_action": "all"}
    address = f"{LIST_URL}?status=FAILED&cause={failed[0].cause}&backend={backend}"

    asked = client.post(address, fields)

    content = asked.content.decode()
    assert forecast in content
    assert button in content
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', content)
    confirmed = {name: value.replace("&quot;", '"') for name, value in hidden if name != "csrfmiddlewaretoken"}
    done = client.post(address, confirmed)
    assert reply in messages_of(done)
    assert [status_of(row) for row in (*failed, other)] == [status] * 3 + ["FAILED"]


@pytest.mark.parametrize(
    ("codename", "has_button"), [("requeue_task", ["Requeue"]), ("cancel_task", ["Discard"]), ("wake_task", [])]
)
def test_button_needs_the_permission_of_its_action(fail, client, backend, codename, has_button):
    fail()
    client.force_login(make_user("view_task", "view_payload", codename))
    assert re.findall(r"(\w+) this task…", client.get(PAGE, {"backend": backend}).content.decode()) == has_button


def test_page_needs_the_permission_to_view_tasks(client):
    client.force_login(make_user("view_queue"))
    assert client.get(PAGE).status_code == 403


def test_page_masks_secrets_of_arguments(fail, show):
    fail("token hunter2hunter2 is wrong", kwargs={"token": "hunter2hunter2"})

    for page in ("task/failures/", ""):
        content = show(page)
        assert "hunter2" not in content
        assert "is wrong" in content


def test_page_escapes_values(fail, show):
    fail(SCRIPT, SCRIPT, task_type=SCRIPT)

    for page in ("task/failures/", ""):
        content = show(page)
        assert "&lt;script&gt;" in content
        assert SCRIPT not in content


def test_number_of_queries_does_not_depend_on_the_tasks(fail, show):
    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            show("task/failures/")
        return len(default) + len(sqlite)

    fail()
    before = count()
    for number in range(10):
        fail(f"order {number} has no address")

    assert count() == before


class TestRequeue:
    @pytest.mark.parametrize("text", ["BadOrder", "no ADDRESS", "cause"])
    def test_error_chooses_by_class_message_or_cause(self, fail, backend, text):
        matching = [fail(f"order {number} has no address") for number in range(3)]
        other = fail("card declined", "shop.errors.Declined")
        text = matching[0].cause if text == "cause" else text

        result = jobqueue("requeue", "--backend", backend, "--error", text, "--yes")

        assert result.code == 0
        assert "Requeued 3 tasks." in result.out
        assert [status_of(row) for row in (*matching, other)] == ["READY"] * 3 + ["FAILED"]

    def test_error_chooses_among_more_causes_than_a_list_finds(self, fail, backend, monkeypatch):
        monkeypatch.setattr(failures, "MAX_CAUSES", 3)
        rows = [fail(f"the {word} is broken") for word in ("door", "lamp", "roof", "stove", "table")]

        result = jobqueue("requeue", "--backend", backend, "--error", "is broken", "--yes")

        assert "Requeued 5 tasks." in result.out
        assert {status_of(row) for row in rows} == {"READY"}

    def test_error_is_refused_if_there_are_too_many_causes(self, fail, backend, monkeypatch):
        monkeypatch.setattr(failures, "MAX_CAUSES_FOUND", 1)
        row, _ = fail("the door is broken"), fail("the lamp is broken")

        result = jobqueue("requeue", "--backend", backend, "--error", "door", "--yes")

        assert result.code == 1
        assert "More than 1 different errors are stored." in result.err
        jobqueue("requeue", "--backend", backend, "--error", row.cause, "--yes")
        assert status_of(row) == "READY"

    def test_since_chooses_by_the_end(self, fail, backend):
        recent, old = fail(finished_at=ago(60)), fail(finished_at=ago(7200))

        jobqueue("requeue", "--backend", backend, "--error", "address", "--since", "1h", "--yes")

        assert [status_of(recent), status_of(old)] == ["READY", "FAILED"]
        jobqueue("requeue", "--backend", backend, "--since", "3h", "--yes")
        assert status_of(old) == "READY"

    def test_unknown_error_names_the_frequent_ones(self, fail, backend):
        row = fail()

        result = jobqueue("requeue", "--backend", backend, "--error", "timeout", "--yes")

        assert result.code == 1
        assert "No failed task has the error 'timeout'." in result.err
        assert "BadOrder: order # has no address" in result.err
        assert status_of(row) == "FAILED"

    def test_error_needs_failed_tasks(self, backend):
        result = jobqueue("requeue", "--backend", backend, "--status", "CANCELLED", "--error", "x")

        assert result.code == 2
        assert "--error needs the status FAILED" in result.err


def test_requeued_task_leaves_its_cause(fail, show, backend):
    row = fail()
    jobqueue("requeue", "--backend", backend, str(row.pk))

    assert reload(row).status == "READY"
    assert "No failed task." in show("task/failures/")
