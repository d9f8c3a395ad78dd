"""The page of a batch: progress, members by state, failures by cause, and their requeue."""

import html
import re

import pytest

from jobqueue.models import Task
from jobqueue.values.batches import BATCH
from tests.admin.pages import BOTH, task_url
from tests.factories import error, make_user
from tests.journals import add

pytestmark = BOTH


@pytest.fixture
def batch(make):
    """A batch of ten members, of which six ended: two failed with one cause, one with another."""
    numbers = {"total": 10, "successful": 2, "failed": 3, "cancelled": 1}
    task = make(suspended=True, task_type=BATCH, inner_state=numbers)
    for name, status in (("Timeout", "FAILED"), ("Timeout", "FAILED"), ("Gone", "FAILED"), ("", "CANCELLED")):
        errors = [error(f"{name} of anna", exception_class_path=f"shop.errors.{name}")] if name else []
        trait = {"failed": True, "errors": errors, "cause": name.lower()} if name else {"cancelled": True}
        member = make(parent_id=task.pk, **trait)
        add(task, str(member.pk), kind="MEMBER", status=status, child_id=member.pk)
    make(parent_id=task.pk, failed=True)  # failed since the batch has counted
    return task


def test_page_of_a_batch_shows_its_progress(show, batch):
    content = show(batch)
    assert '<progress class="jq-progress" max="10" value="6"' in content
    assert "6 of 10 (60 %)" in content
    assert "Waits for 4 of 10 members." in content
    assert re.search(r"parent=[^>]*>4 not ended", content)
    assert "jq-journal" not in content


def test_batch_without_a_poll_shows_the_members_of_its_enqueue(show, make):
    assert "0 of 4 (0 %)" in show(make(task_type=BATCH, kwargs={"members": 4}))
    assert "0 of 0 (0 %)" in show(make(task_type=BATCH, kwargs={"members": 0}, inner_state={"total": []}))


def test_failures_of_a_batch_are_listed_by_cause(client, show, batch, backend):
    content = show(batch)
    links = re.findall(r'<li><a href="([^"]*cause=[^"]*)">(\d+)</a> <span class="jq-error">([^<]*)<', content)
    assert [(number, title) for _link, number, title in links] == [
        ("2", "Timeout: Timeout of anna"),
        ("1", "Gone: Gone of anna"),
    ]
    listed = client.get(html.unescape(links[0][0])).context["cl"]
    assert {row.cause for row in listed.result_list} == {"timeout"}


def test_reader_without_the_permission_sees_no_messages_of_members(client, batch):
    client.force_login(make_user("view_task"))
    content = client.get(task_url(batch)).content.decode()
    assert "Timeout" in content
    assert "of anna" not in content
    assert "cause=" not in content
    assert "failed members" not in content


def test_requeue_of_failed_members_changes_only_them(client, show, batch, backend):
    (address,) = re.findall(r'action="([^"]*batch=[^"]*)"', show(batch))
    fields = {"select_across": "1", "_selected_action": "all", "action": "requeue_selected"}
    confirmation = client.post(html.unescape(address), fields)
    assert "Requeue 3 tasks" in confirmation.content.decode()

    client.post(html.unescape(address), dict(confirmation.context["hidden"]))

    members = Task.objects.using(backend).filter(parent_id=batch.pk)
    assert sorted(members.values_list("status", flat=True)) == ["CANCELLED", "FAILED", "READY", "READY", "READY"]


def test_list_shows_workflows_and_batches_alone(client, show, make, batch):
    make()
    rows = client.get("/admin/jobqueue/task/", {"kind": "batch", "backend": batch.backend}).context["cl"].result_list
    assert {row.pk for row in rows} == {batch.pk}
    assert client.get("/admin/jobqueue/task/", {"kind": "x"}).context["cl"].result_list == []


def test_members_of_no_batch_are_none(client, show, batch):
    for text in ("x", "00000000-0000-0000-0000-000000000000"):
        rows = client.get("/admin/jobqueue/task/", {"batch": text, "backend": batch.backend}).context["cl"].result_list
        assert list(rows) == []
