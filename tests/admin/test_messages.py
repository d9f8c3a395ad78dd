"""Forms for the messages that an actor takes, made from its `Message`."""

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pytest

from jobqueue import Actor, Suspend
from jobqueue.admin.message_forms import list_kinds
from jobqueue.models import InboxMessage
from tests.admin.pages import BOTH, messages_of, task_url
from tests.factories import MessageFactory, TaskFactory, ago, make_user

pytestmark = BOTH


class Approve(msgspec.Struct, tag="approve"):
    """Let the order go out."""

    amount: int
    note: str = ""
    is_gift: bool = False


class Refuse(msgspec.Struct, tag="refuse", rename="camel"):
    because_of: str
    tags: list[str] = msgspec.field(default_factory=list)


class Order(Actor[Any]):
    Message = Approve | Refuse | str

    def poll(self, context):
        return Suspend()


@dataclass
class Publish:
    title: str
    pages: list[int] = field(default_factory=list)
    type: Literal["publish"] = "publish"


class Remark(TypedDict):
    text: str
    stars: NotRequired[int]


class Magazine(Actor[Any]):
    Message = Publish

    def poll(self, context):
        return Suspend()


class Review(Actor[Any]):
    Message = Remark

    def poll(self, context):
        return Suspend()


class Anything(Actor[Any]):
    def poll(self, context):
        return Suspend()


@pytest.fixture
def make(backend):
    def create(actor=Order, **columns):
        columns = {"task_type": actor.task.task_type, "suspended": True, **columns}
        return TaskFactory.create(backend=backend, using=backend, **columns)

    return create


@pytest.fixture
def send(client, staff):
    def post(row, kind, **fields):
        return client.post(task_url(row, "send"), {"kind": kind, **{f"{kind}-{name}": v for name, v in fields.items()}})

    return post


def bodies(row):
    return list(InboxMessage.objects.using(row.backend).filter(task_id=row.pk).values_list("body", flat=True))


def test_kinds_are_the_classes_of_message():
    kinds = {actor: [(kind.name, [*kind.signature.parameters], kind.constants) for kind in list_kinds(actor)]
             for actor in (Order, Magazine, Review, Anything)}  # fmt: skip

    assert kinds == {
        Order: [
            ("Approve", ["amount", "note", "is_gift"], {"type": "approve"}),
            ("Refuse", ["becauseOf", "tags"], {"type": "refuse"}),
        ],
        Magazine: [("Publish", ["title", "pages"], {"type": "publish"})],
        Review: [("Remark", ["text", "stars"], {})],
        Anything: [],
    }


def test_page_has_a_form_for_each_class_and_one_for_json(make, show):
    page = show(make())

    for text in (
        "Let the order go out.",
        'name="Approve-amount"',
        'name="Refuse-becauseOf"',
        "Send Approve",
        "As JSON",
    ):
        assert text in page
    assert "As JSON" not in show(make(Anything))


@pytest.mark.parametrize(
    ("actor", "kind", "fields", "body"),
    [
        (Order, "Approve", {"amount": "7"}, {"type": "approve", "amount": 7}),
        (
            Order, "Approve", {"amount": "7", "note": "now", "is_gift": "on"},
            {"type": "approve", "amount": 7, "note": "now", "is_gift": True},
        ),
        (Order, "Refuse", {"becauseOf": "no", "tags": '["a"]'}, {"type": "refuse", "becauseOf": "no", "tags": ["a"]}),
        (Magazine, "Publish", {"title": "May"}, {"type": "publish", "title": "May"}),
        (Review, "Remark", {"text": "good", "stars": "5"}, {"text": "good", "stars": 5}),
        (Review, "Remark", {"text": "good"}, {"text": "good"}),
    ],
)  # fmt: skip
def test_form_sends_a_message_of_its_class(make, send, actor, kind, fields, body):
    row = make(actor)

    response = send(row, kind, **fields)

    assert messages_of(response)[0].startswith("Message sent")
    assert bodies(row) == [body]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"amount": "seven"}, "Enter a whole number."),
        ({}, "This field is required."),
    ],
)
def test_form_with_an_error_sends_nothing_and_stays_open(make, send, fields, words):
    row = make()

    page = send(row, "Approve", **fields).content.decode()

    assert words in page
    assert bodies(row) == []
    assert page.count('<details class="jq-kind" open>') == 1


def test_message_that_the_actor_refuses_is_not_sent(make, send):
    row = make()

    page = send(row, "Refuse", becauseOf="x", tags="[1]").content.decode()

    assert "Not a valid Order.Message: Expected `str`, got `int` - at `$.tags[0]`" in page
    assert bodies(row) == []


# --- consumed messages


def test_consumed_messages_show_their_kept_bodies(make, show, client, backend, settings):
    row = make()
    MessageFactory.create(using=backend, task_id=row.pk, body={"kept": 1, "token": "s1"}, consumed_at=ago(2))
    MessageFactory.create(using=backend, task_id=row.pk, body=None, dedupe_key="k", consumed_at=ago(1))

    page = show(row)

    assert "&quot;kept&quot;: 1" in page
    assert "s1&quot;" not in page
    assert "deleted when it was read" in page
    assert "The option KEEP_MESSAGES keeps them." in page
    client.force_login(make_user("view_task"))
    assert "kept&quot;" not in client.get(task_url(row)).content.decode()
