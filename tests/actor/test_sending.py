"""jobqueue.send, send_many and their async variants."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import jobqueue
from jobqueue import Done, PollContext, Send, Suspend, TaskFinished, TaskNotFound
from jobqueue.api import asend_many
from jobqueue.exceptions import InvalidArguments
from jobqueue.values.ids import new_id
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage
from tests.fixtures import Options

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def collecting(seen: list[Any]) -> Any:
    def poll(context: PollContext[Any]) -> Any:
        seen.extend(message.body for message in context.inbox.take())
        return Suspend()

    return poll


@pytest.fixture
def seen() -> list[Any]:
    return []


def test_send_takes_id_text_of_id_or_key(stage: Stage, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen), key="album-7")
    names: list[UUID | str] = [pk, str(pk), "album-7"]
    numbers = [jobqueue.send(name, n) for n, name in enumerate(names)]
    stage.run()

    assert seen == [0, 1, 2]
    assert numbers == sorted(numbers)  # type: ignore[type-var]
    key = str(new_id())  # looks like an id, and is read as one
    stage.enter(lambda context: Suspend(), key=key)
    with pytest.raises(TaskNotFound):
        jobqueue.send(key, 1)


def test_send_to_function_task_is_refused(stage: Stage) -> None:
    pk = UUID(actors.double.using(key="two").enqueue(2).id)

    for name in (pk, str(pk), "two"):
        with pytest.raises(InvalidArguments, match=f"Task {pk} runs .*double.*, a function. Only actors read messages"):
            jobqueue.send(name, "hello")
    assert stage.unread(pk) == []


def test_send_to_unknown_task_type_is_accepted(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    stage.change(pk, task_type="another.project.Actor")

    assert stage.send(pk, "hello") is not None


def test_send_many_sends_all_or_none(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    with pytest.raises(TaskNotFound):
        jobqueue.send_many([Send(pk, 1), Send(new_id(), 2)])
    with pytest.raises(TaskNotFound, match="'unknown'"):
        jobqueue.send_many([Send(pk, 1), Send("unknown", 2)])
    with pytest.raises(InvalidArguments):
        jobqueue.send_many([Send(pk, 1), Send(pk, object())])

    assert stage.unread(pk) == []
    assert jobqueue.send_many([]) == []


def test_async_functions_send_messages(stage: Stage, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen))
    stage.enter(collecting(seen), key="b")
    many = [Send(pk, 2), Send("b", 3), Send(pk, 4, dedupe_key="x"), Send(pk, 5, dedupe_key="x")]

    async def send() -> None:
        assert await jobqueue.asend(pk, 1)
        assert len(await asend_many(many, sender=pk)) == 3

    async_to_sync(send)()
    stage.run()

    assert sorted(seen) == [1, 2, 3, 4]


UNSTORABLE = ["a" * 256, "a\x00b", "\ud800", "", 5, b"paid"]


def test_repeated_send_after_end_has_no_effect_by_id_or_key(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        return Done(len(context.inbox.take())) if context.inbox else Suspend()

    pk = stage.enter(poll, key="order-7")
    other = stage.enter(lambda context: Suspend())
    stage.run()
    assert jobqueue.send("order-7", "paid", dedupe_key="event-1") is not None
    stage.run()
    assert stage.result(pk) == 1

    names: list[UUID | str] = [pk, str(pk), "order-7"]
    for name in names:
        assert jobqueue.send(name, "paid", dedupe_key="event-1") is None
        assert len(jobqueue.send_many([Send(other, 1), Send(name, "paid", dedupe_key="event-1")])) == 1
    for name, error in ((pk, TaskFinished), ("order-7", TaskNotFound)):
        for dedupe_key in (None, "event-2"):
            with pytest.raises(error):
                jobqueue.send_many([Send(other, 1), Send(name, "paid", dedupe_key=dedupe_key)])
    with pytest.raises(TaskNotFound):
        jobqueue.send("order-8", "paid", dedupe_key="event-1")
    assert stage.unread(other) == [1, 1, 1]


def test_repeated_send_to_reused_key_goes_to_new_task(stage: Stage, seen: list[Any]) -> None:
    stage.enter(lambda context: Done() if context.inbox.take() else Suspend(), key="k")
    stage.run()
    jobqueue.send("k", 1, dedupe_key="event-1")
    stage.run()
    stage.enter(collecting(seen), key="k")

    assert jobqueue.send("k", 2, dedupe_key="event-1") is not None
    stage.run()
    assert seen == [2]


def test_poll_may_repeat_send_to_finished_task(stage: Stage) -> None:
    to = stage.enter(lambda context: Done() if context.inbox.take() else Suspend(), key="k")
    stage.run()
    stage.send(to, dedupe_key="event-1")
    stage.run()
    pk = stage.enter(lambda context: (Send(to, 1, "event-1"), Send("k", 1, "event-1"), Done("sent")))
    refused = stage.enter(lambda context: (Send(to, 1), Done("sent")))
    stage.run()

    assert stage.result(pk) == "sent"
    assert stage.error(refused).startswith("TaskFinished")


@pytest.mark.parametrize("dedupe_key", UNSTORABLE)
def test_invalid_dedupe_key_is_refused(stage: Stage, dedupe_key: Any) -> None:
    pk = stage.enter(lambda context: Suspend())

    with pytest.raises(InvalidArguments, match="dedupe_key must be a text of 1 to 255 characters, not "):
        stage.send(pk, 1, dedupe_key=dedupe_key)
    with pytest.raises(InvalidArguments, match="dedupe_key must be"):
        jobqueue.send_many([Send(pk, 1), Send(pk, 2, dedupe_key)])
    assert stage.unread(pk) == []
    assert stage.send(pk, 3, dedupe_key="é" * 255) is not None


@pytest.mark.parametrize("receiver", [new_id(), str(new_id()), "unknown", ""], ids=["id", "text", "key", "empty"])
def test_send_to_unknown_receiver_raises(stage: Stage, receiver: Any) -> None:
    with pytest.raises(TaskNotFound):
        jobqueue.send(receiver)


@pytest.mark.parametrize("body", [object(), float("nan"), "a\x00", "x" * 2_000_000])
def test_invalid_body_is_refused(stage: Stage, body: Any) -> None:
    pk = stage.enter(lambda context: Suspend())

    with pytest.raises(InvalidArguments, match="message"):
        stage.send(pk, body)
    assert stage.unread(pk) == []


def test_body_may_hold_structs_and_dataclasses(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    stage.send(pk, [actors.Item("a"), actors.Publish("b"), pk])

    assert stage.unread(pk) == [[{"name": "a", "at": None}, {"type": "publish", "title": "b"}, str(pk)]]


def test_send_is_undone_with_transaction_of_caller(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    with transaction.atomic(using=stage.database):
        stage.send(pk, "undone")
        transaction.set_rollback(True, using=stage.database)

    assert stage.unread(pk) == []


def test_receiver_is_woken_after_commit_of_sender(stage: Stage, django_capture_on_commit_callbacks: Any) -> None:
    pk = stage.enter(lambda context: Suspend())
    stage.run()
    with django_capture_on_commit_callbacks(execute=True, using=stage.database):
        stage.send(pk)
        assert stage.status(pk) == Status.SUSPENDED

    assert stage.status(pk) == Status.READY


def test_send_takes_backend(stage: Stage, options: Options, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen), backend="sqlite")
    with pytest.raises(TaskNotFound):
        jobqueue.send(pk, 1)
    jobqueue.send(pk, 2, backend="sqlite")
    stage.run(backend="sqlite")

    assert seen == [2]
