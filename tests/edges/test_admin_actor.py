"""The page of an actor: parents and children, messages, actions."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue import Actor, Done, Suspend
from jobqueue.admin import task_page
from jobqueue.engine import engine_for
from jobqueue.inspect import inbox as inbox_module
from jobqueue.inspect import tree
from jobqueue.inspect.tree import Child, choose, read_tree
from jobqueue.models import InboxMessage, Task
from jobqueue.serialization.ids import new_id
from jobqueue.serialization.redaction import MASK
from tests.actor.actors import Checked
from tests.edges.admin import BOTH, SCRIPT, messages_of, status_of, task_url
from tests.factories import MessageFactory, TaskFactory, ago, make_user, now

pytestmark = BOTH


class Counter(Actor[Any]):
    """Adds the numbers of its messages."""

    @dataclass
    class Add:
        number: int

    Message = Add

    def poll(self, context):
        return Suspend()


class Listener(Actor[Any]):
    def poll(self, context):
        return Done()


@pytest.fixture
def make(backend):
    defaults = {"task_type": Listener.task.task_type, "suspended": True}
    return lambda **columns: TaskFactory.create(backend=backend, using=backend, **(defaults | columns))


@pytest.fixture
def child_of(backend):
    def create(parent, **columns):
        return TaskFactory.create(backend=backend, using=backend, parent_id=parent.pk, **columns)

    return create


@pytest.fixture
def staff(client):
    user = make_user("view_task", "view_payload", "send_message", "wake_task", "cancel_task")
    client.force_login(user)
    return user


@pytest.fixture
def page(client, staff):
    def get(row):
        response = client.get(task_url(row))
        assert response.status_code == 200
        return response.content.decode()

    return get


@pytest.fixture
def send(client, staff):
    return lambda row, text: client.post(task_url(row, "send"), {"body": text})


def inbox(row):
    rows = InboxMessage.objects.using(row.backend).filter(task_id=row.pk).order_by("pk")
    return [message.body for message in rows]


# --- state and messages


def test_state_is_shown_masked_or_as_absent(make, page):
    shown = page(make(inner_state={"total": 41, "api_token": "s1"}))

    assert "&quot;total&quot;: 41" in shown
    assert MASK in shown
    assert "s1&quot;" not in shown
    assert "No state yet: no poll has succeeded." in page(make(inner_state=None))


def test_message_shows_kind_sender_and_body(make, page, backend):
    row, sender = make(), uuid4()
    for child_status in (None, "SUCCESSFUL", "FAILED", "CANCELLED"):
        MessageFactory.create(
            using=backend, task_id=row.pk, child_status=child_status, sender_id=sender if child_status else None
        )

    shown = page(row)

    assert all(kind in shown for kind in ("message", "child succeeded", "child failed", "child was cancelled"))
    assert shown.count(reverse("admin:jobqueue_task_change", args=[sender])) == 3
    assert "outside" in shown
    assert shown.count("hello") == 4
    assert "It has 4 unread messages." in shown


def test_consumed_message_with_dedupe_key_is_shown_as_read(make, page, backend):
    row = make()
    MessageFactory.create(using=backend, task_id=row.pk, body=None, dedupe_key="webhook:7", consumed_at=ago(1))

    shown = page(row)

    assert "webhook:7" in shown
    assert "read <time" in shown
    assert "unread" not in shown


def test_long_messages_are_cut_and_many_are_left_out(make, page, backend, monkeypatch):
    monkeypatch.setattr(inbox_module, "MAX_UNREAD", 2)
    row = make()
    bodies = ["x" * 5000, "y" * 60_000, "z"]
    for body in bodies:
        MessageFactory.create(using=backend, task_id=row.pk, body=body)

    shown = page(row)

    assert "The first 1000 of 5002 characters." in shown
    assert "y" * 100 not in shown
    assert "Only the 100 oldest unread messages are shown." in shown
    assert "&quot;z&quot;" not in shown


def test_message_of_ended_actor_is_undelivered(make, page, backend):
    row = make(suspended=False, successful=True)
    MessageFactory.create(using=backend, task_id=row.pk)

    shown = page(row)

    assert "undelivered" in shown
    assert "1 message was not delivered." in shown
    assert "<textarea" not in shown


def test_bodies_and_state_need_the_permission(client, make, backend):
    client.force_login(make_user("view_task"))
    row = make(inner_state={"total": "val1"})
    MessageFactory.create(using=backend, task_id=row.pk, body="val2")

    with CaptureQueriesContext(connections[backend]) as queries:
        shown = client.get(task_url(row)).content.decode()

    assert "val1" not in shown
    assert "val2" not in shown
    assert not any('"jobqueue_inboxmessage"."body"' in query["sql"] for query in queries)


def test_nothing_of_an_actor_is_rendered_unescaped(make, page, child_of, backend):
    root = make(task_type=SCRIPT, key=SCRIPT)
    row = make(parent_id=root.pk, inner_state={SCRIPT: SCRIPT}, key=SCRIPT + "2")
    child_of(child_of(row, task_type=SCRIPT, key=SCRIPT + "3"), task_type=SCRIPT)
    MessageFactory.create(
        using=backend, task_id=row.pk, body={SCRIPT: SCRIPT}, dedupe_key=SCRIPT, child_status="<script>"
    )

    shown = page(row)

    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 8
    assert "<script>" not in shown


# --- parents and children


def test_breadcrumbs_lead_from_the_root_to_the_task(make, page):
    rows = [make()]
    for _ in range(8):
        rows.append(make(parent_id=rows[-1].pk))

    shown = page(rows[-1])

    crumbs = shown[shown.index("jq-crumbs") : shown.index("</ol>")]
    places = [crumbs.index(task_url(row)) for row in rows[:-1]]
    assert places == sorted(places)
    assert task_url(rows[-1]) not in crumbs


def test_breadcrumbs_end_at_a_pruned_task_or_a_limit(make, page, monkeypatch):
    grandchild = make(parent_id=make(parent_id=uuid4()).pk)
    assert "a pruned task" in page(grandchild)

    monkeypatch.setattr(tree, "STEP", 2)
    monkeypatch.setattr(tree, "STEPS", 1)
    for _ in range(3):
        grandchild = make(parent_id=grandchild.pk)

    assert "<li>…</li>" in page(grandchild)


def test_child_of_ended_parent_is_explained(make, page):
    over = make(suspended=False, successful=True)

    assert "Its parent has ended." in page(make(parent_id=over.pk))
    assert "Its parent has ended." in page(make(parent_id=uuid4()))
    assert "Its parent has ended." not in page(make(parent_id=make().pk))
    assert "Its parent has ended." not in page(make(suspended=False, failed=True, parent_id=over.pk))


def test_children_are_a_tree_with_counts_by_state(make, page, child_of):
    root = make()
    child = child_of(root, suspended=True)
    leaf = child_of(child_of(child), failed=True)
    beyond = child_of(leaf)
    child_of(root, successful=True)

    shown = page(root)

    assert task_url(child) in shown
    assert task_url(leaf) in shown
    assert task_url(beyond) not in shown
    assert shown.count("<details") == 3
    assert f"parent={root.pk}&amp;status=SUCCESSFUL" in shown
    assert f"parent={leaf.pk}" in shown
    assert "1 child has not ended" in shown


def test_tree_prefers_failed_and_unfinished_children(make, page, child_of, backend, monkeypatch):
    monkeypatch.setattr(tree, "SHOWN", 3)
    root = make()
    for _ in range(3):
        child_of(root, successful=True)
    failed, ready = child_of(root, failed=True), child_of(root)

    shown = page(root)

    assert task_url(failed) in shown
    assert task_url(ready) in shown
    assert "3 are shown, failed and unfinished ones first." in shown
    assert read_tree(backend, root.pk).counts == {"SUCCESSFUL": 3, "FAILED": 1, "READY": 1}


def test_tree_shares_places_between_parents():
    one, two = UUID(int=1), UUID(int=2)
    many = [Child(one, UUID(int=10 + n), "READY") for n in range(5)]
    few = [Child(two, UUID(int=20), "SUCCESSFUL")]

    assert choose([*many, *few], 3) == [many[0], few[0], many[1]]


def test_tree_counts_are_capped(make, page, child_of, backend, monkeypatch):
    monkeypatch.setattr(tree, "COUNTED", 4)
    monkeypatch.setattr(tree, "COUNTED_BELOW", 2)
    root = make()
    children = [child_of(root) for _ in range(3)]
    for child in children:
        child_of(child)
        child_of(child)

    found = read_tree(backend, root.pk)

    assert found.total == 3
    assert not found.is_truncated
    branches = [node.branch for node in found.nodes if node.branch]
    assert [(branch.total, branch.is_truncated) for branch in branches] == [(2, False), (0, True), (0, True)]
    assert "0 or more below" in page(root)

    monkeypatch.setattr(tree, "COUNTED", 2)
    assert "and more, not counted" in page(root)


def test_task_that_is_its_own_parent_has_a_page(page, backend):
    pk = new_id()
    row = TaskFactory.create(backend=backend, using=backend, id=pk, parent_id=pk)

    assert "Children" in page(row)


def test_tree_of_many_children_takes_few_queries(make, page, backend):
    def count(row):
        with CaptureQueriesContext(connections[backend]) as queries:
            page(row)
        return len(queries)

    lonely, parent = make(), make()
    above = [parent.pk]
    for _ in range(4):
        common = {"backend": backend, "task_type": "x", "enqueued_at": now(), "rank": now()}
        rows = [Task(id=new_id(), parent_id=above[n % len(above)], **common) for n in range(250)]
        above = [row.pk for row in Task.objects.using(backend).bulk_create(rows)]
    count(lonely)

    assert count(parent) <= count(lonely) + 4
    assert read_tree(backend, parent.pk).size == 300


# --- send


@pytest.mark.parametrize("state", ["suspended", "running", "scheduled"])
def test_send_stores_the_message(make, send, state):
    row = make(**{"suspended": False, state: True})

    response = send(row, '{"text": "publish", "n": [1, 2.5, null]}')

    assert response.url == task_url(row)
    (message,) = InboxMessage.objects.using(row.backend).filter(task_id=row.pk)
    assert messages_of(response) == [f"Message sent (no. {message.pk})."]
    assert message.body == {"text": "publish", "n": [1, 2.5, None]}
    assert message.sender_id is None


def test_send_wakes_the_receiver_after_commit(make, send, django_capture_on_commit_callbacks, backend):
    row = make()

    with django_capture_on_commit_callbacks(using=backend, execute=True):
        send(row, "null")

    assert status_of(row) == "READY"


def test_send_logs_the_user_but_not_the_body(make, send, staff, page):
    row = make()

    send(row, '"hunter2"')

    entry = LogEntry.objects.get()
    (message,) = InboxMessage.objects.using(row.backend).filter(task_id=row.pk)
    assert (entry.user, entry.object_id, entry.change_message) == (staff, str(row.pk), f"Send message {message.pk}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("publish", "Not valid JSON: Expecting value in line 1, column 1."),
        ('{"a": 1,}', "Not valid JSON:"),
        ("", "A message is JSON. For an empty message write null."),
        ("[" * 100_000, "JSON"),
        ("9" * 5000, "Unreadable JSON:"),
        ("NaN", "message"),
        ('"\\u0000"', "message"),
        (f'"{SCRIPT}"x', "Not valid JSON: Extra data"),
    ],
)
def test_send_of_invalid_json_explains_the_error(make, send, text, words):
    row = make()

    response = send(row, text)

    shown = response.content.decode()
    assert response.status_code == 200
    assert words in shown[shown.index("errorlist") :]
    assert SCRIPT not in shown
    assert inbox(row) == []
    assert not LogEntry.objects.exists()


def test_send_of_invalid_json_keeps_the_text(make, send):
    shown = send(make(), '{"text": "a long message",}').content.decode()

    assert "{&quot;text&quot;: &quot;a long message&quot;,}</textarea>" in shown


def test_send_refuses_an_invalid_message(make, send):
    row = make(task_type=Counter.task.task_type)

    shown = send(row, '{"number": "seven"}').content.decode()

    assert "Not a valid Counter.Message: Expected `int`, got `str`" in shown
    assert inbox(row) == []
    assert send(row, '{"number": 7}').status_code == 302
    assert inbox(row) == [{"number": 7}]


def test_send_refuses_a_message_that_its_type_rejects(make, send):
    row = make(task_type=Checked.task.task_type)

    shown = send(row, '{"article": "mug"}').content.decode()

    assert "Not a valid Checked.Message: KeyError: &#x27;mug&#x27;" in shown
    assert inbox(row) == []


def test_page_shows_the_message_schema(make, page, monkeypatch):
    typed, untyped = make(task_type=Counter.task.task_type), make()

    assert "&quot;number&quot;: {\n          &quot;type&quot;: &quot;integer&quot;" in page(typed)
    assert "Message schema" not in page(untyped)
    monkeypatch.setattr(Counter, "Message", Exception)  # has no schema
    assert "Message schema" not in page(typed)


def test_send_to_an_ended_actor_is_refused(make, send):
    row = make(suspended=False, successful=True)

    assert messages_of(send(row, "1")) == ["Message not sent: the task has ended."]
    assert inbox(row) == []


def test_send_to_an_actor_that_just_ended_is_refused(make, send, monkeypatch, backend):
    row = make()
    valid = task_page.MessageForm.is_valid

    def end_first(form):
        Task.objects.using(backend).filter(pk=row.pk).update(status="CANCELLED", finished_at=now())
        return valid(form)

    monkeypatch.setattr(task_page.MessageForm, "is_valid", end_first)

    assert "has ended" in messages_of(send(row, "1"))[0]
    assert inbox(row) == []


def test_send_to_an_actor_that_was_just_pruned_is_refused(make, send, monkeypatch, backend):
    row = make()
    valid = task_page.MessageForm.is_valid

    def prune_first(form):
        Task.objects.using(backend).filter(pk=row.pk)._raw_delete(backend)
        return valid(form)

    monkeypatch.setattr(task_page.MessageForm, "is_valid", prune_first)

    response = send(row, "1")

    assert "Unknown task" in messages_of(response)[0]
    assert response.url == "/admin/jobqueue/task/"


def test_send_is_offered_for_actors_only(make, page, send):
    function, unknown = make(task_type="tests.tasks.add"), make(task_type="shop.actors.Gone")

    assert "<textarea" in page(make())
    assert "<textarea" not in page(function)
    assert "<textarea" not in page(unknown)
    assert messages_of(send(unknown, "1")) == ["Message not sent: this site has no actor of this name."]
    assert inbox(unknown) == []


# --- wake now


def test_wake_now_makes_a_suspended_task_ready(client, staff, make):
    row = make(wake_at=now())

    response = client.post(task_url(row, "wake"))

    assert messages_of(response) == ["Woke 1 task. It runs as soon as an executor has a free slot."]
    assert status_of(row) == "READY"
    assert LogEntry.objects.get().change_message == "Wake now"


def test_wake_now_skips_a_running_task(client, staff, make):
    row = make(suspended=False, running=True)

    response = client.post(task_url(row, "wake"))

    assert messages_of(response) == ["Skipped 1 task: not suspended, or deleted."]
    assert not LogEntry.objects.exists()


def test_wake_now_is_offered_to_suspended_tasks_only(make, page):
    assert "Wake now" in page(make())
    assert "Wake now" not in page(make(suspended=False, scheduled=True))


def test_lock_timeout_is_reported(client, staff, make, monkeypatch, backend):
    row = make()

    def refuse(*args, **kwargs):
        raise OperationalError("canceling statement due to lock timeout")

    monkeypatch.setattr(engine_for(backend), "wake", refuse)

    response = client.post(task_url(row, "wake"))

    assert messages_of(response) == [
        "Nothing was changed: another transaction has locked the task. Try again in a moment."
    ]
    assert status_of(row) == "SUSPENDED"


# --- cancel with descendants


def test_cancel_includes_descendants_only_if_ticked(client, staff, make, child_of):
    root, other = make(), make()
    child, spared = child_of(root), child_of(other)
    grandchild = child_of(child, running=True)

    assert messages_of(client.post(task_url(root, "cancel"), {"tree": "1"})) == [
        "Cancelled 2 tasks. Asked 1 running task to stop."
    ]
    client.post(task_url(other, "cancel"))

    assert [status_of(row) for row in (root, child, other, spared)] == ["CANCELLED", "CANCELLED", "CANCELLED", "READY"]
    assert Task.objects.using(grandchild.backend).get(pk=grandchild.pk).cancel_requested_at is not None
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"Cancel with descendants", "Cancel"}


def test_children_of_an_ended_parent_can_be_cancelled(client, staff, make, child_of, page):
    root = make(suspended=False, successful=True)
    child = child_of(root)
    assert "Cancel its descendants" in page(root)

    response = client.post(task_url(root, "cancel"), {"tree": "1"})

    assert messages_of(response) == ["Cancelled 1 task. Skipped 1 task: already ended, or deleted."]
    assert (status_of(root), status_of(child)) == ("SUCCESSFUL", "CANCELLED")
    assert "Cancel its descendants" not in page(root)


def test_cancel_offers_descendants_if_some_are_unfinished(make, page, child_of):
    lonely, parent = make(), make()
    child_of(lonely, successful=True)
    child_of(parent)

    assert "and its descendants" not in page(lonely)
    assert "and its descendants" in page(parent)


# --- permissions


@pytest.mark.parametrize(
    ("name", "permission", "words"),
    [("send", "send_message", "<textarea"), ("wake", "wake_task", "Wake now"), ("cancel", "cancel_task", ">Cancel<")],
)
def test_each_action_needs_its_permission(client, make, name, permission, words):
    row = make()
    for permissions in (["view_task"], [permission], [permission, "view_task"]):
        client.force_login(make_user(*permissions))
        is_allowed = len(permissions) == 2
        if "view_task" in permissions:
            assert (words in client.get(task_url(row)).content.decode()) is is_allowed
        response = client.post(task_url(row, name), {"body": "1"})
        assert response.status_code == (302 if is_allowed else 403)
    others = make_user("view_task", *({"send_message", "wake_task", "cancel_task"} - {permission}))
    client.force_login(others)
    assert client.post(task_url(row, name), {"body": "1"}).status_code == 403


@pytest.mark.parametrize("name", ["send", "wake", "cancel"])
def test_actions_refuse_get(client, staff, make, name):
    row = make()

    assert client.get(task_url(row, name), {"body": "1"}).status_code == 405
    assert status_of(row) == "SUSPENDED"
    assert inbox(row) == []


@pytest.mark.parametrize("name", ["send", "wake", "cancel"])
def test_actions_need_the_csrf_token(staff, make, name):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(staff)
    row = make()

    assert strict.post(task_url(row, name), {"body": "1"}).status_code == 403
    assert status_of(row) == "SUSPENDED"
    assert inbox(row) == []


@pytest.mark.parametrize("name", ["send", "wake"])
def test_action_on_unknown_task_is_reported(client, staff, name):
    response = client.post(f"/admin/jobqueue/task/{uuid4()}/{name}/", {"body": "1"})

    assert "Unknown task" in messages_of(response)[0]
