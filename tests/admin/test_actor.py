"""The page of an actor: parents and children, messages, actions."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connections
from django.test.utils import CaptureQueriesContext

from jobqueue import Actor, Done, Suspend
from jobqueue.admin import task_page
from jobqueue.engine import engine_for
from jobqueue.models import InboxMessage, Task
from jobqueue.operations.task import inbox as inbox_module
from jobqueue.operations.task import tree
from jobqueue.operations.task.tree import Relative, choose, read_tree
from jobqueue.values.ids import new_id
from jobqueue.values.redaction import MASK
from tests.actor.actors import Checked
from tests.admin.pages import BOTH, SCRIPT, messages_of, reload, status_of, task_url
from tests.factories import MessageFactory, TaskFactory, ago, make_user, now

pytestmark = BOTH


class AddingActor(Actor[Any]):
    """Adds the numbers of its messages."""

    @dataclass
    class Add:
        number: int

    Message = Add

    def poll(self, context):
        return Suspend()


class ListeningActor(Actor[Any]):
    def poll(self, context):
        return Done()


@pytest.fixture
def make(backend):
    """Create a suspended actor, or a task of another state."""

    def create(state="suspended", **columns):
        columns = {"task_type": ListeningActor.task.task_type, state: True, **columns}
        return TaskFactory.create(backend=backend, using=backend, **columns)

    return create


@pytest.fixture
def child_of(make):
    return lambda parent, state="scheduled", **columns: make(state, parent_id=parent.pk, task_type="x", **columns)


@pytest.fixture
def message(backend):
    return lambda row, **columns: MessageFactory.create(using=backend, task_id=row.pk, **columns)


@pytest.fixture
def post(client, staff):
    return lambda row, action, **data: client.post(task_url(row, action), data)


@pytest.fixture
def send(post):
    return lambda row, text: post(row, "send", body=text)


def inbox(row):
    rows = InboxMessage.objects.using(row.backend).filter(task_id=row.pk).order_by("pk")
    return [message.body for message in rows]


# --- state and messages


def test_state_is_shown_masked_or_as_absent(make, show):
    page = show(make(inner_state={"total": 41, "api_token": "s1"}))

    assert "&quot;total&quot;: 41" in page
    assert MASK in page
    assert "s1&quot;" not in page
    assert "No state yet: no poll has succeeded." in show(make(inner_state=None))


def test_messages_show_kind_sender_and_body(make, show, message):
    row, sender = make(), make()
    message(row)
    for child_status in ("SUCCESSFUL", "FAILED", "CANCELLED"):
        message(row, child_status=child_status, sender_id=sender.pk)
    message(row, body=None, dedupe_key="webhook:7", consumed_at=ago(1))

    page = show(row)

    for text in ("message", "child succeeded", "child failed", "child was cancelled", "outside", "webhook:7"):
        assert text in page
    assert page.count(task_url(sender)) == 3
    assert page.count("hello") == 4
    assert page.count(">unread<") == 4
    assert "It has 4 unread messages." in page
    assert "deleted when it was read" in page


def test_long_messages_are_cut_and_many_are_left_out(make, show, message, monkeypatch):
    monkeypatch.setattr(inbox_module, "MAX_UNREAD", 2)
    row = make()
    for body in ("x" * 5000, "y" * 60_000, "z"):
        message(row, body=body)

    page = show(row)

    assert "The first 1000 of 5002 characters." in page
    assert "y" * 100 not in page
    assert "Only the 100 oldest unread messages are shown." in page
    assert "&quot;z&quot;" not in page


def test_message_of_ended_actor_is_undelivered(make, show, message):
    row = make("successful")
    message(row)

    page = show(row)

    assert "undelivered" in page
    assert "1 message was not delivered." in page
    assert "<textarea" not in page


# --- parents and children


def test_breadcrumbs_lead_from_the_root_to_the_task(make, show, monkeypatch):
    rows = [make()]
    for _ in range(8):
        rows.append(make(parent_id=rows[-1].pk))

    page = show(rows[-1])

    crumbs = page[page.index("jq-crumbs") : page.index("</ol>")]
    places = [crumbs.index(task_url(row)) for row in rows[:-1]]
    assert places == sorted(places)
    assert task_url(rows[-1]) not in crumbs
    monkeypatch.setattr(tree, "MAX_ANCESTORS", 2)
    assert "<li>…</li>" in show(rows[-1])
    assert "a pruned task" in show(make(parent_id=uuid4()))


def test_child_of_ended_parent_is_explained(make, show):
    ended = make("successful")

    for parent, state, is_orphan in (
        (ended.pk, "suspended", True),
        (uuid4(), "suspended", True),
        (make().pk, "suspended", False),
        (ended.pk, "failed", False),
    ):
        assert ("Its parent has ended." in show(make(state, parent_id=parent))) is is_orphan


def test_children_are_a_tree_with_counts_by_state(make, show, child_of):
    root = make()
    child = child_of(root, "suspended")
    leaf = child_of(child_of(child), "failed")
    beyond = child_of(leaf)
    child_of(root, "successful")

    page = show(root)

    assert task_url(child) in page
    assert task_url(leaf) in page
    assert task_url(beyond) not in page
    assert page.count("<details") == 3
    assert f"parent={root.pk}&amp;status=SUCCESSFUL" in page
    assert f"parent={leaf.pk}" in page
    assert "1 child has not ended" in page


def test_tree_prefers_failed_and_unfinished_children(make, show, child_of, backend, monkeypatch):
    monkeypatch.setattr(tree, "SHOWN", 3)
    root = make()
    for _ in range(3):
        child_of(root, "successful")
    failed, waiting = child_of(root, "failed"), child_of(root)

    page = show(root)

    assert task_url(failed) in page
    assert task_url(waiting) in page
    assert "3 are shown, failed and unfinished ones first." in page
    assert read_tree(backend, root.pk).counts == {"SUCCESSFUL": 3, "FAILED": 1, "SCHEDULED": 1}


def test_tree_shares_places_between_parents():
    first, two = UUID(int=1), UUID(int=2)
    many = [Relative(UUID(int=10 + n), first, "READY") for n in range(5)]
    few = [Relative(UUID(int=20), two, "SUCCESSFUL")]

    assert choose([*many, *few], 3) == [many[0], few[0], many[1]]


def test_tree_counts_are_capped(make, show, child_of, backend, monkeypatch):
    monkeypatch.setattr(tree, "CAP", 4)
    monkeypatch.setattr(tree, "LEVEL_CAP", 2)
    root = make()
    for child in [child_of(root) for _ in range(3)]:
        child_of(child)
        child_of(child)

    family = read_tree(backend, root.pk)

    assert (family.total, family.is_truncated) == (3, False)
    branches = [node.branch for node in family.nodes if node.branch]
    assert [(branch.total, branch.is_truncated) for branch in branches] == [(2, False), (0, True), (0, True)]
    assert "0 or more below" in show(root)
    monkeypatch.setattr(tree, "CAP", 2)
    assert "and more, not counted" in show(root)


def test_task_that_is_its_own_parent_has_a_page(make, show):
    pk = new_id()

    assert "Children" in show(make(id=pk, parent_id=pk))


def test_tree_of_many_children_takes_few_queries(make, show, backend):
    def count(row):
        with CaptureQueriesContext(connections[backend]) as queries:
            show(row)
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
def test_send_stores_and_logs_the_message(make, send, staff, state):
    row = make(state)

    response = send(row, '{"text": "publish", "n": [1, 2.5, null]}')

    assert response.url == task_url(row)
    (sent,) = InboxMessage.objects.using(row.backend).filter(task_id=row.pk)
    assert messages_of(response) == [f"Message sent (no. {sent.pk})."]
    assert (sent.body, sent.sender_id) == ({"text": "publish", "n": [1, 2.5, None]}, None)
    entry = LogEntry.objects.get()  # without the body
    assert (entry.user, entry.object_id, entry.change_message) == (staff, str(row.pk), f"Send message {sent.pk}")


def test_send_wakes_the_receiver_after_commit(make, send, django_capture_on_commit_callbacks, backend):
    row = make()

    with django_capture_on_commit_callbacks(using=backend, execute=True):
        send(row, "null")

    assert status_of(row) == "READY"


@pytest.mark.parametrize(
    ("actor", "text", "words"),
    [
        (ListeningActor, "publish", "Not valid JSON: Expecting value in line 1, column 1."),
        (ListeningActor, '{"a": 1,}', "Not valid JSON:"),
        (ListeningActor, "", "A message is JSON. For an empty message write null."),
        (ListeningActor, "[" * 100_000, "JSON"),
        (ListeningActor, "9" * 5000, "Unreadable JSON:"),
        (ListeningActor, "NaN", "The value: NaN is not JSON."),
        (ListeningActor, '"\\u0000"', "The value: a NUL character cannot be stored."),
        (ListeningActor, f'"{SCRIPT}"x', "Not valid JSON: Extra data"),
        (AddingActor, '{"number": "seven"}', "Not a valid AddingActor.Message: Expected `int`, got `str`"),
        (Checked, '{"article": "mug"}', "Not a valid Checked.Message: KeyError: &#x27;mug&#x27;"),
    ],
)
def test_send_refuses_and_explains_an_invalid_message(make, send, actor, text, words):
    row = make(task_type=actor.task.task_type)

    response = send(row, text)

    page = response.content.decode()
    assert response.status_code == 200
    assert words in page[page.index("errorlist") :]
    assert SCRIPT not in page
    assert inbox(row) == []
    assert not LogEntry.objects.exists()


def test_send_of_invalid_json_keeps_the_text(make, send):
    page = send(make(), '{"text": "a long message",}').content.decode()

    assert "{&quot;text&quot;: &quot;a long message&quot;,}</textarea>" in page


def test_page_shows_the_message_schema(make, show, monkeypatch):
    typed = make(task_type=AddingActor.task.task_type)

    assert "&quot;number&quot;: {\n          &quot;type&quot;: &quot;integer&quot;" in show(typed)
    assert "Message schema" not in show(make())
    monkeypatch.setattr(AddingActor, "Message", Exception)  # has no schema
    assert "Message schema" not in show(typed)


def delete(rows):
    rows._raw_delete(rows.db)


@pytest.mark.parametrize(
    ("meanwhile", "words"),
    [
        (lambda rows: rows.update(status="CANCELLED", finished_at=now()), "has ended"),
        (delete, "Unknown task"),
    ],
    ids=["ended", "pruned"],
)
def test_send_to_an_actor_that_just_left_is_refused(make, send, monkeypatch, meanwhile, words):
    row = make()
    valid = task_page.MessageForm.is_valid

    def leave_first(form):
        meanwhile(Task.objects.using(row.backend).filter(pk=row.pk))
        return valid(form)

    monkeypatch.setattr(task_page.MessageForm, "is_valid", leave_first)

    assert words in messages_of(send(row, "1"))[0]
    assert inbox(row) == []


@pytest.mark.parametrize(
    ("state", "task_type", "words"),
    [
        ("suspended", "tests.tasks.add", "this site has no actor of this name."),
        ("suspended", "shop.actors.Gone", "this site has no actor of this name."),
        ("successful", ListeningActor.task.task_type, "the task has ended."),
    ],
)
def test_send_is_offered_for_living_actors_only(make, show, send, state, task_type, words):
    row = make(state, task_type=task_type)

    assert "<textarea" in show(make())
    assert "<textarea" not in show(row)
    assert messages_of(send(row, "1")) == [f"Message not sent: {words}"]
    assert inbox(row) == []


# --- wake, and cancel with descendants


@pytest.mark.parametrize(
    ("state", "words", "status"),
    [
        ("suspended", "1 task runs as soon as an executor has a free slot.", "READY"),
        ("scheduled", "1 task runs as soon as an executor has a free slot.", "READY"),
        ("running", "Skipped 1 task: not scheduled or suspended, or deleted.", "RUNNING"),
    ],
)
def test_run_now_makes_only_a_waiting_task_ready(make, post, show, state, words, status):
    row = make(state, wake_at=now())
    assert ("Run now" in show(row)) is (state != "running")

    assert messages_of(post(row, "wake")) == [words]
    assert status_of(row) == status
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Run now"] * (status == "READY")


def test_lock_timeout_is_reported(make, post, monkeypatch, backend):
    row = make()

    def refuse(*args, **kwargs):
        raise OperationalError("canceling statement due to lock timeout")

    monkeypatch.setattr(engine_for(backend).tasks, "run_now", refuse)

    assert messages_of(post(row, "wake")) == [
        "Nothing was changed: another transaction has locked the task. Try again in a moment."
    ]
    assert status_of(row) == "SUSPENDED"


def test_cancel_includes_descendants_only_if_ticked(make, post, show, child_of):
    root, other, lonely = make(), make(), make()
    child, spared = child_of(root), child_of(other)
    grandchild = child_of(child, "running")
    child_of(lonely, "successful")
    assert "Cancel its descendants, too" in show(root)
    assert "Cancel its descendants, too" not in show(lonely)

    assert b'value="Cancel 3 tasks"' in post(root, "cancel", tree="1").content
    done = post(root, "cancel", tree="1", confirmed="1")
    assert messages_of(done) == ["Cancelled 2 tasks. Asked 1 running task to stop."]
    post(other, "cancel", confirmed="1")

    statuses = [status_of(row) for row in (root, child, other, spared)]
    assert statuses == ["CANCELLED", "CANCELLED", "CANCELLED", "SCHEDULED"]
    assert reload(grandchild).cancel_requested_at is not None
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"Cancel with descendants", "Cancel"}


def test_children_of_an_ended_parent_can_be_cancelled(make, post, show, child_of):
    root = make("successful")
    child = child_of(root)
    assert "Cancel its descendants" in show(root)

    assert b'value="Cancel 1 task"' in post(root, "cancel", tree="1").content
    response = post(root, "cancel", tree="1", confirmed="1")

    assert messages_of(response) == ["Cancelled 1 task. Skipped 1 task: already ended, or deleted."]
    assert (status_of(root), status_of(child)) == ("SUCCESSFUL", "CANCELLED")
    assert "Cancel its descendants" not in show(root)


@pytest.mark.parametrize(
    ("permission", "words"),
    [("send_message", "<textarea"), ("wake_task", "Run now"), ("cancel_task", ">Cancel</button>")],
)
def test_page_offers_only_permitted_actions(client, make, permission, words):
    """test_security.py tries the actions themselves."""
    row = make()
    for permissions in ([], [permission]):
        client.force_login(make_user("view_task", *permissions))

        assert (words in client.get(task_url(row)).content.decode()) is bool(permissions)


@pytest.mark.parametrize("action", ["send", "wake", "cancel", "requeue"])
def test_action_on_unknown_task_redirects_to_the_list(post, action):
    response = post(Task(id=uuid4()), action, body="1")

    assert response.url == "/admin/jobqueue/task/"
    assert "Unknown task" in messages_of(response)[0]
