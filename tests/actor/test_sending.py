"""jobqueue.send and its kin."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import jobqueue
from jobqueue import Done, PollContext, Send, Suspend, TaskFinished, TaskNotFound
from jobqueue.api import asend_many
from jobqueue.exceptions import InvalidArguments
from jobqueue.records import Status
from jobqueue.serialization.ids import new_id
from tests.actor import actors
from tests.actor.conftest import Options
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def collecting(seen: list[Any]) -> Any:
    def poll(context: PollContext[Any]) -> Any:
        seen.extend(message.body for message in context.inbox.take())
        return Suspend()

    return poll


@pytest.fixture
def seen() -> list[Any]:
    return []


def test_by_id_its_text_and_by_key(stage: Stage, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen), key="album-7")
    names: list[UUID | str] = [pk, str(pk), "album-7"]
    numbers = [jobqueue.send(name, n) for n, name in enumerate(names)]
    stage.run()

    assert seen == [0, 1, 2]
    assert numbers == sorted(numbers)  # type: ignore[type-var]


def test_key_that_looks_like_an_id_is_an_id(stage: Stage) -> None:
    key = str(new_id())
    stage.enter(lambda context: Suspend(), key=key)

    with pytest.raises(TaskNotFound):
        jobqueue.send(key, 1)


def test_function_task_reads_no_messages(stage: Stage) -> None:
    pk = UUID(actors.double.using(key="two").enqueue(2).id)

    for name in (pk, str(pk), "two"):
        with pytest.raises(InvalidArguments, match=f"Task {pk} runs .*double.*, a function. Only actors read messages"):
            jobqueue.send(name, "hello")
    assert stage.unread(pk) == []


def test_task_that_no_code_here_knows_may_be_an_actor(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    stage.change(pk, task_type="another.project.Actor")

    assert stage.send(pk, "hello") is not None


@pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.SUSPENDED])
def test_every_living_task_takes_mail(stage: Stage, seen: list[Any], status: Status) -> None:
    pk = stage.enter(collecting(seen), run_after=timedelta(hours=1) if status is Status.SCHEDULED else None)
    if status is Status.SUSPENDED:
        stage.run()
    assert stage.status(pk) == status
    stage.send(pk, "hello")
    stage.advance(3600)
    stage.run()

    assert seen == ["hello"]


def test_many_at_once_in_order(stage: Stage, seen: list[Any]) -> None:
    a = stage.enter(collecting(seen))
    stage.enter(collecting(seen), key="b")
    sent = jobqueue.send_many(
        [Send(a, 1), Send("b", 2), Send(a, 3), Send(a, 4, dedupe_key="x"), Send(a, 5, dedupe_key="x")]
    )
    stage.run()

    assert len(sent) == 4
    assert sorted(seen) == [1, 2, 3, 4]


def test_many_all_or_none(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    with pytest.raises(TaskNotFound):
        jobqueue.send_many([Send(pk, 1), Send(new_id(), 2)])
    with pytest.raises(TaskNotFound, match="'nobody'"):
        jobqueue.send_many([Send(pk, 1), Send("nobody", 2)])
    with pytest.raises(InvalidArguments):
        jobqueue.send_many([Send(pk, 1), Send(pk, object())])

    assert stage.unread(pk) == []
    assert jobqueue.send_many([]) == []


def test_async_variants(stage: Stage, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen))

    async def send() -> None:
        assert await jobqueue.asend(pk, 1)
        assert len(await asend_many([Send(pk, 2)], sender=pk)) == 1

    async_to_sync(send)()
    stage.run()

    assert seen == [1, 2]


def test_dedupe_makes_a_repeated_webhook_harmless(stage: Stage, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen))
    assert stage.send(pk, 1, dedupe_key="event-1") is not None
    assert stage.send(pk, 1, dedupe_key="event-1") is None
    stage.run()
    assert stage.send(pk, 1, dedupe_key="event-1") is None
    assert stage.send(pk, 2, dedupe_key="event-2") is not None
    stage.run()

    assert seen == [1, 2]


UNSTORABLE = ["a" * 256, "a\x00b", "\ud800", "", 5, b"paid"]


def test_repeat_after_the_end_is_harmless_by_id_and_by_key(stage: Stage) -> None:
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


def test_repeat_to_a_key_that_another_task_has_now_goes_to_that(stage: Stage, seen: list[Any]) -> None:
    stage.enter(lambda context: Done() if context.inbox.take() else Suspend(), key="k")
    stage.run()
    jobqueue.send("k", 1, dedupe_key="event-1")
    stage.run()
    stage.enter(collecting(seen), key="k")

    assert jobqueue.send("k", 2, dedupe_key="event-1") is not None
    stage.run()
    assert seen == [2]


def test_poll_may_repeat_a_send_to_one_that_has_ended(stage: Stage) -> None:
    to = stage.enter(lambda context: Done() if context.inbox.take() else Suspend(), key="k")
    stage.run()
    stage.send(to, dedupe_key="event-1")
    stage.run()
    pk = stage.enter(lambda context: (Send(to, 1, "event-1"), Send("k", 1, "event-1"), Done("sent")))
    stage.run()

    assert stage.result(pk) == "sent"


@pytest.mark.parametrize("dedupe_key", UNSTORABLE)
def test_dedupe_that_no_row_holds_is_refused(stage: Stage, dedupe_key: Any) -> None:
    pk = stage.enter(lambda context: Suspend())

    with pytest.raises(InvalidArguments, match="dedupe_key must be a text of 1 to 255 characters, not "):
        stage.send(pk, 1, dedupe_key=dedupe_key)
    with pytest.raises(InvalidArguments, match="dedupe_key must be"):
        jobqueue.send_many([Send(pk, 1), Send(pk, 2, dedupe_key)])
    assert stage.unread(pk) == []
    assert stage.send(pk, 3, dedupe_key="é" * 255) is not None


@pytest.mark.parametrize("dedupe_key", UNSTORABLE)
def test_poll_whose_send_has_such_a_dedupe_has_failed(stage: Stage, dedupe_key: Any) -> None:
    to = stage.enter(lambda context: Suspend())
    pk = stage.enter(lambda context: (Send(to, 1, dedupe_key), Done()))
    stage.run()

    assert stage.status(pk) == Status.SCHEDULED
    assert stage.error(pk).startswith("InvalidArguments: message: dedupe_key must be a text")
    assert stage.row(pk).attempts == 1


def test_task_that_has_ended(stage: Stage) -> None:
    pk = stage.enter(lambda context: Done(), key="k")
    stage.run()

    with pytest.raises(TaskFinished, match="has ended"):
        stage.send(pk)
    with pytest.raises(TaskNotFound, match="'k'"):
        jobqueue.send("k")


@pytest.mark.parametrize("receiver", [new_id(), str(new_id()), "nobody", ""], ids=["id", "text", "key", "empty"])
def test_nobody(stage: Stage, receiver: Any) -> None:
    with pytest.raises(TaskNotFound):
        jobqueue.send(receiver)


@pytest.mark.parametrize("body", [object(), float("nan"), "a\x00", "x" * 2_000_000])
def test_body_that_cannot_be_stored(stage: Stage, body: Any) -> None:
    pk = stage.enter(lambda context: Suspend())

    with pytest.raises(InvalidArguments, match="message"):
        stage.send(pk, body)
    assert stage.unread(pk) == []


def test_what_msgspec_makes_json_of_is_a_body(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    stage.send(pk, [actors.Item("a"), actors.Publish("b"), pk])

    assert stage.unread(pk) == [[{"name": "a", "at": None}, {"type": "publish", "title": "b"}, str(pk)]]


def test_in_the_callers_transaction(stage: Stage) -> None:
    pk = stage.enter(lambda context: Suspend())
    with transaction.atomic(using=stage.database):
        stage.send(pk, "undone")
        transaction.set_rollback(True, using=stage.database)

    assert stage.unread(pk) == []


def test_receiver_is_woken_after_the_commit(stage: Stage, django_capture_on_commit_callbacks: Any) -> None:
    pk = stage.enter(lambda context: Suspend())
    stage.run()
    with django_capture_on_commit_callbacks(execute=True, using=stage.database):
        stage.send(pk)
        assert stage.status(pk) == Status.SUSPENDED

    assert stage.status(pk) == Status.READY


def test_function_task_may_send(stage: Stage, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen))
    actors.send_to.enqueue(str(pk), "from a function")
    stage.run()

    assert seen == ["from a function"]


def test_to_another_backend(stage: Stage, options: Options, seen: list[Any]) -> None:
    pk = stage.enter(collecting(seen), backend="sqlite")
    with pytest.raises(TaskNotFound):
        jobqueue.send(pk, 1)
    jobqueue.send(pk, 2, backend="sqlite")
    stage.run(backend="sqlite")

    assert seen == [2]


def test_sender_may_be_given_as_a_text(stage: Stage) -> None:
    sender: list[UUID | None] = []

    def poll(context: PollContext[Any]) -> Any:
        sender.extend(message.sender for message in context.inbox.take())
        return Suspend()

    pk = stage.enter(poll)
    stage.send(pk, sender=str(pk))
    stage.run()

    assert sender == [pk]
