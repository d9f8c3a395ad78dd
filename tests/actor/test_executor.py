"""Actors in a real executor: threads, the event loop, and what comes from outside meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone

import jobqueue
from jobqueue import Actor, Done, Kind, PollContext, Send, Sleep, Suspend, Yield, api
from jobqueue.compat import task_enqueued
from jobqueue.models import InboxMessage, Task
from jobqueue.records import Status
from tests.actor.conftest import Options
from tests.actor.stage import AsyncPuppet, Puppet, Stage
from tests.actors import Fibonacci
from tests.executor.conftest import burst as burst
from tests.executor.conftest import start as start
from tests.executor.harness import Burst, Start, gates, wait_for

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def transactional(transactional_db: None) -> None: ...


@pytest.fixture(params=[Puppet, AsyncPuppet])
def actor(request: pytest.FixtureRequest) -> type[Actor[Any]]:
    chosen: type[Actor[Any]] = request.param
    return chosen


def enter(stage: Stage, actor: type[Actor[Any]], poll: Callable[[PollContext[Any]], Any], **using: Any) -> UUID:
    async def apoll(context: PollContext[Any]) -> Any:
        return poll(context)

    return stage.enter(apoll if actor is AsyncPuppet else poll, actor=actor, **using)


def wait_until(stage: Stage, pk: UUID, status: Status) -> None:
    wait_for(lambda: stage.status(pk) == status, f"{status} of {pk}")


def test_tree_of_children(stage: Stage, burst: Burst) -> None:
    result = Fibonacci.enqueue(8)
    burst()

    assert stage.result(UUID(result.id)) == 21


def test_message_from_outside_wakes_at_once(stage: Stage, start: Start, actor: type[Actor[Any]]) -> None:
    pk = enter(stage, actor, lambda context: Done(context.inbox.popleft().body) if context.inbox else Suspend())
    start()
    wait_until(stage, pk, Status.SUSPENDED)
    stage.send(pk, "hello")
    wait_until(stage, pk, Status.SUCCESSFUL)

    assert stage.result(pk) == "hello"


def test_class_in_place_of_an_action_fails_the_poll(stage: Stage, burst: Burst, actor: type[Actor[Any]]) -> None:
    pk = enter(stage, actor, lambda context: Suspend)
    burst()

    assert stage.error(pk) == "InvalidActions: poll() returned the class Suspend, not Suspend()."


def test_sleep_ends(stage: Stage, start: Start, actor: type[Actor[Any]]) -> None:
    pk = enter(stage, actor, lambda c: Done(c.timed_out) if c.polls else Sleep(timedelta(seconds=0.2)))
    start()
    wait_until(stage, pk, Status.SUCCESSFUL)

    assert stage.result(pk) is True


def test_queue_that_nobody_used_is_seen_when_a_commit_wakes_somebody_there(
    stage: Stage, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.executor.claim_policy.QUEUES_SECONDS", 3600.0)

    def poll(context: PollContext[Any]) -> Any:
        return Done("woken") if context.inbox.take() else Suspend()

    pk = stage.enter(poll, queue_name="quiet")
    stage.run()
    stage.enter(lambda context: (jobqueue.Send(pk), Done()), queue_name="busy")
    start()
    wait_until(stage, pk, Status.SUCCESSFUL)


@pytest.mark.parametrize("as_function", [False, True])
def test_running_poll_ends_before_its_cancelled_task_does(
    stage: Stage, start: Start, options: Options, as_function: bool
) -> None:
    options(HEARTBEAT_TIMEOUT=3)  # without notices, the next beat brings the news
    told: list[bool] = []

    def poll(context: PollContext[Any]) -> Any:
        gates["poll"].arrive()
        wait_for(lambda: context.cancelled, "the news of the cancellation")
        told.append(context.cancelled)
        context.state["poll"] = "through"

        def commit() -> Any:
            Group.objects.using(stage.database).create(name="written")
            return Suspend()

        return commit if as_function else Suspend()

    pk = stage.enter(poll)
    start()
    gates["poll"].wait_for()
    assert jobqueue.cancel(pk).requested == 1
    wait_until(stage, pk, Status.CANCELLED)

    assert told == [True]
    assert stage.row(pk).inner_state == {"poll": "through"}
    assert stage.row(pk).errors == []
    assert Group.objects.using(stage.database).count() == int(as_function)


def test_mail_that_comes_during_a_poll_is_not_missed(stage: Stage, start: Start) -> None:
    def poll(context: PollContext[Any]) -> Any:
        if context.polls == 0:
            gates["poll"].pass_through()
            return Suspend()
        return Done([message.body for message in context.inbox.take()])

    pk = stage.enter(poll)
    start()
    gates["poll"].wait_for()
    stage.send(pk, "meanwhile")
    gates["poll"].open()
    wait_until(stage, pk, Status.SUCCESSFUL)

    assert stage.result(pk) == ["meanwhile"]


def test_commit_function_and_its_children(stage: Stage, burst: Burst, actor: type[Actor[Any]]) -> None:
    def poll(context: PollContext[Any]) -> Any:
        if ended := context.inbox.take(Kind.CHILD_SUCCESSFUL):
            return Done(ended[0].body)

        def commit() -> Any:
            Group.objects.using(stage.database).create(name="sheet")
            return stage.child(lambda context: Done("child")), Suspend()

        return commit

    pk = enter(stage, actor, poll)
    burst()

    assert stage.result(pk) == "child"
    assert Group.objects.using(stage.database).count() == 1


def test_poll_that_fails_after_it_was_refused_is_tried_again(stage: Stage, burst: Burst, options: Options) -> None:
    ended = stage.enter(lambda context: Done())
    burst()
    tries: list[int] = []

    def poll(context: PollContext[Any]) -> Any:
        tries.append(context.attempt)
        return (jobqueue.Send(ended), Suspend()) if len(tries) == 1 else Done("second try")

    pk = stage.enter(poll, backoff=jobqueue.Backoff(base=0.01))
    burst()

    assert stage.result(pk) == "second try"
    assert tries == [1, 2]
    assert stage.error(pk).startswith("TaskFinished")


def test_timeout_fails_the_poll(stage: Stage, burst: Burst) -> None:
    def poll(context: PollContext[Any]) -> Any:
        wait_for(lambda: context.cancelled, "the timeout")
        return Suspend()

    pk = stage.enter(poll, timeout=0.2, max_attempts=1)
    burst()

    assert stage.status(pk) == Status.FAILED
    assert stage.error(pk).startswith("TaskTimeout")


def test_stop_hands_back_a_waiting_actor_untouched(stage: Stage, start: Start, actor: type[Actor[Any]]) -> None:
    pk = enter(stage, actor, lambda context: Suspend())
    running = start()
    wait_until(stage, pk, Status.SUSPENDED)
    running.stop()

    assert stage.status(pk) == Status.SUSPENDED
    assert stage.row(pk).polls == 1


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_wake_by_hand_tells_waiting_executors(stage: Stage, start: Start) -> None:
    pk = stage.enter(lambda context: Done() if context.polls else Sleep(timedelta(hours=1)))
    running = start(poll_interval=3600.0)
    wait_for(lambda: running.process.listener is not None and running.process.listener.is_listening)
    wait_until(stage, pk, Status.SUSPENDED)
    wait_for(lambda: running.loop._policy.wait_seconds(1) > 60, "rest")

    with transaction.atomic():
        assert api.wake(pk) == 1
        assert stage.status(pk) == Status.READY
    wait_until(stage, pk, Status.SUCCESSFUL)


@pytest.mark.parametrize("as_function", [False, True])
def test_messages_that_nobody_will_read_are_counted(
    stage: Stage, burst: Burst, caplog: pytest.LogCaptureFixture, as_function: bool
) -> None:
    def poll(context: PollContext[Any]) -> Any:
        stage.send(pk, "too late")
        return (lambda: Done()) if as_function else Done()

    pk = stage.enter(poll)
    stage.send(pk, "left")
    caplog.set_level(logging.INFO, "jobqueue.executor")
    running = burst()

    assert stage.status(pk) == Status.SUCCESSFUL
    assert stage.unread(pk) == ["left", "too late"]
    assert running.loop.counts.undelivered == 2
    assert f"message.undelivered id={pk} count=2" in caplog.text
    assert "finished=1 lost=0 undelivered=2" in caplog.text


def test_signal_tells_of_children_when_they_are_there(stage: Stage, burst: Burst) -> None:
    told: list[tuple[str, bool]] = []

    def receiver(task_result: Any, **_: Any) -> None:
        rows = Task.objects.using(stage.database).filter(pk=task_result.id)
        told.append((task_result.id, rows.exists()))

    child = stage.child(lambda context: Done())
    stage.enter(lambda context: Done() if context.inbox else (child, Suspend()))
    task_enqueued.connect(receiver)
    try:
        burst()
    finally:
        task_enqueued.disconnect(receiver)

    assert told == [(str(child.id), True)]


def test_messages_to_a_parent_that_has_ended_are_counted(stage: Stage, burst: Burst) -> None:
    child = stage.child(
        lambda context: (Yield("hello?"), Yield("still there?"), Done()) if context.polls else Sleep(timedelta(0.1))
    )
    pk = stage.enter(lambda context: (child, Done()) if not context.polls else None)
    stage.run()
    assert stage.status(pk) == Status.SUCCESSFUL

    stage.advance(86_400)
    running = burst()

    assert stage.status(child.id) == Status.SUCCESSFUL
    assert stage.unread(pk) == []
    assert running.loop.counts.undelivered == 3  # and its end


def test_messages_that_were_read_are_not_counted(stage: Stage, burst: Burst) -> None:
    pk = stage.enter(lambda context: Done(len(context.inbox.take())))
    stage.send(pk)
    stage.enter(lambda context: (Send(pk), Done()) if not context.polls else None, priority=5)

    assert burst(threads=1).loop.counts.undelivered == 0
    assert stage.result(pk) == 2


@pytest.mark.parametrize("rests", [False, True])
def test_message_from_sql_is_found_long_before_the_alarm_and_the_next_poll_of_the_queue(
    stage: Stage, start: Start, options: Options, database: str, rests: bool
) -> None:
    """rests: its first poll left mail unread, and it looks again every POLL_INTERVAL."""
    options(POLL_INTERVAL=3600.0)

    def poll(context: PollContext[Any]) -> Any:
        return Done() if context.inbox.take(str) else Sleep(timedelta(hours=1.5))

    pk = stage.enter(poll)
    if rests:
        stage.send(pk, 1)
    start(threads=1)
    wait_until(stage, pk, Status.SUSPENDED)
    if rests:
        stage.change(pk, unread_polls=20, wake_at=stage.row(pk).enqueued_at + timedelta(hours=1))
    InboxMessage.objects.using(database).create(task_id=pk, body="found", sent_at=timezone.now())
    wait_until(stage, pk, Status.SUCCESSFUL)
