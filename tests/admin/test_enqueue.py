"""The form that enqueues a task by hand, or a copy of one with other arguments."""

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue.models import Task
from jobqueue.values.redaction import MASK
from tests.admin.pages import BOTH, SCRIPT, messages_of, task_url
from tests.api.test_redaction import log_in
from tests.factories import make_user

pytestmark = BOTH
ADDRESS = "/admin/jobqueue/task/enqueue/"


def newest(database="default"):
    return Task.objects.using(database).order_by("-pk").first()


def test_form_enqueues_a_task_with_arguments_and_options(client, staff):
    page = client.get(ADDRESS, {"task": "tests.tasks.add"}).content.decode()
    assert 'name="argument-a"' in page
    assert "Enqueue 1 task" in page

    data = {"task": "tests.tasks.add", "argument-a": "57", "queue_name": "emails", "priority": "5", "key": "a"}
    response = client.post(ADDRESS, data)

    row = newest()
    assert response.url == task_url(row)
    assert messages_of(response) == ["Enqueued 1 task."]
    assert (row.kwargs, row.queue_name, row.priority, row.key) == ({"a": 57}, "emails", 5, "a")
    assert LogEntry.objects.get().change_message == "Enqueued by hand."


def test_page_without_a_task_offers_each_known_one(client, staff):
    content = client.get(f"{ADDRESS}?task=gone").content.decode()

    assert "This site has no task gone." in content
    assert 'href="?task=tests.tasks.add"' in content
    assert "jobqueue.bulk_action" not in content


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"argument-a": ""}, "This field is required."),
        ({"argument-a": "1", "priority": "1000"}, "Ensure this value is less than or equal to 100."),
        ({"argument-a": "1", "key": "taken"}, "A task with this key has not ended."),
        ({"argument-a": "1", "run_after": SCRIPT}, "Enter a valid date/time."),
    ],
)
def test_form_explains_what_is_wrong_and_enqueues_nothing(client, staff, fields, words):
    client.post(ADDRESS, {"task": "tests.tasks.add", "argument-a": "1", "key": "taken"})

    page = client.post(ADDRESS, {"task": "tests.tasks.add", **fields}).content.decode()

    assert words in page
    assert SCRIPT not in page
    assert Task.objects.count() == 1


def test_copy_has_the_changed_argument_and_keeps_masked_ones(client, staff, make, backend):
    row = make(task_type=log_in.task_type, args=["anna", "hunter2"], failed=True, queue_name="emails", key="login")
    address = reverse("admin:jobqueue_task_enqueue") + f"?copy={row.pk}"
    page = client.get(address).content.decode()
    assert 'value="anna"' in page
    assert "hunter2" not in page

    response = client.post(
        address, {"argument-name": "ben", "argument-password": MASK, "queue_name": "other", "backend": backend}
    )

    copy = newest(backend)
    assert response.url == task_url(copy)
    assert copy.pk != row.pk
    assert (copy.kwargs, copy.args) == ({"name": "ben", "password": "hunter2"}, [])
    assert (copy.queue_name, copy.key, copy.status) == ("other", None, "READY")


def test_copy_needs_the_permission_to_see_arguments(client, make):
    row = make(task_type=log_in.task_type, args=["anna", "hunter2"])
    client.force_login(make_user("view_task", "enqueue_task"))

    assert client.get(ADDRESS, {"copy": row.pk}).status_code == 403
    assert "Enqueue a copy" not in client.get(task_url(row)).content.decode()
    assert client.get(ADDRESS).status_code == 200


def test_task_that_code_no_longer_has_cannot_be_copied(client, staff, make):
    row = make(task_type=f"gone.{SCRIPT}")

    page = client.get(ADDRESS, {"copy": row.pk}).content.decode()

    assert "This site has no task gone." in page
    assert SCRIPT not in page
    assert "jobqueue.bulk_action" not in client.get(ADDRESS).content.decode()
