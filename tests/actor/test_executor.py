"""Actors in a running executor: threads, event loop, messages and cancellation."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone

import jobqueue
from jobqueue import Actor, Backoff, Done, Kind, PollContext, Send, Sleep, Suspend, Yield, api
from jobqueue.conf.compat import task_enqueued
from jobqueue.models import InboxMessage, Task
from jobqueue.values.states import Status
from tests.actor.stage import Stage
from tests.executor.conftest import burst as burst
from tests.executor.conftest import start as start
from tests.executor.harness import Burst, Start, gates
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def transactional(transactional_db: None) -> None: ...


def wait_for_state(stage: Stage, pk: UUID, status: Status) -> None:
    wait_until(lambda: stage.status(pk) == status, f"{status} of {pk}")


def test_message_wakes_actor_at_once(stage: Stage, start: Start, actor: type[Actor[Any]]) -> None:
    pk = stage.enter(
        actor=actor, poll=lambda context: Done(context.inbox.popleft().body) if context.inbox else Suspend()
    )
    start()
    wait_for_state(stage, pk, Status.SUSPENDED)
    stage.send(pk, "hello")
    wait_for_state(stage, pk, Status.SUCCESSFUL)

    assert stage.result(pk) == "hello"


def test_sleep_ends_after_its_time(stage: Stage, start: Start, actor: type[Actor[Any]]) -> None:
    pk = stage.enter(lambda c: Done(c.timed_out) if c.polls else Sleep(timedelta(seconds=0.2)), actor=actor)
    start()
    wait_for_state(stage, pk, Status.SUCCESSFUL)

    assert stage.result(pk) is True


@pytest.mark.parametrize("as_function", [False, True])
def test_poll_of_cancelled_actor_runs_to_its_end(
    stage: Stage, start: Start, options: Options, as_function: bool
) -> None:
    options(HEARTBEAT_TIMEOUT=3)  # SQLite has no notifications: the next heartbeat reports the cancel
    results: list[bool] = []

    def poll(context: PollContext[Any]) -> Any:
        gates["poll"].arrive()
        wait_until(lambda: context.cancelled, "the cancellation")
        results.append(context.cancelled)
        context.state["poll"] = "through"

        def commit() -> Any:
            Group.objects.using(stage.database).create(name="written")
            return Suspend()

        return commit if as_function else Suspend()

    pk = stage.enter(poll)
    start()
    gates["poll"].wait_for()
    assert jobqueue.cancel(pk).requested == 1
    wait_for_state(stage, pk, Status.CANCELLED)

    assert results == [True]
    assert stage.row(pk).inner_state == {"poll": "through"}
    assert stage.row(pk).errors == []
    assert Group.objects.using(stage.database).count() == int(as_function)


def test_message_sent_during_poll_wakes_actor(stage: Stage, start: Start) -> None:
    def poll(context: PollContext[Any]) -> Any:
        if context.polls == 0:
            gates["poll"].pass_through()
            return Suspend()
        return Done([message.body for message in context.inbox.take()])

    pk = stage.enter(poll)
    start()
    gates["poll"].wait_for()
    stage.send(pk, "late")
    gates["poll"].open()
    wait_for_state(stage, pk, Status.SUCCESSFUL)

    assert stage.result(pk) == ["late"]


def test_task_enqueued_is_sent_after_commit_of_children(stage: Stage, burst: Burst, actor: type[Actor[Any]]) -> None:
    stored: list[Any] = []

    def receiver(task_result: Any, **_: Any) -> None:
        stored.append(Task.objects.using(stage.database).get(pk=task_result.id).parent_id)

    def poll(context: PollContext[Any]) -> Any:
        if ended := context.inbox.take(Kind.CHILD_SUCCESSFUL):
            return Done(ended[0].body)

        def commit() -> Any:
            Group.objects.using(stage.database).create(name="sheet")
            return stage.child(lambda context: Done("child")), Suspend()

        return commit

    pk = stage.enter(poll, actor=actor)
    task_enqueued.connect(receiver)
    try:
        burst()
    finally:
        task_enqueued.disconnect(receiver)

    assert stored == [pk]
    assert stage.result(pk) == "child"
    assert Group.objects.using(stage.database).count() == 1


def test_commit_that_wakes_actor_shows_its_queue_to_executor(
    stage: Stage, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.executor.claim_policy.QUEUES_SECONDS", 3600.0)
    pk = stage.enter(lambda context: Done() if context.inbox.take() else Suspend(), queue_name="quiet")
    stage.run()
    stage.enter(lambda context: (Send(pk), Done()), queue_name="busy")
    start()
    wait_for_state(stage, pk, Status.SUCCESSFUL)


def test_refused_poll_is_retried(stage: Stage, burst: Burst) -> None:
    ended = stage.enter(lambda context: Done())
    burst()
    attempts: list[int] = []

    def poll(context: PollContext[Any]) -> Any:
        attempts.append(context.attempt)
        return (Send(ended), Suspend()) if len(attempts) == 1 else Done("second try")

    pk = stage.enter(poll, backoff=Backoff(base=0.01))
    burst()

    assert (stage.result(pk), attempts) == ("second try", [1, 2])
    assert stage.error(pk).startswith("TaskFinished")


def test_stop_does_not_change_suspended_actor(stage: Stage, start: Start, actor: type[Actor[Any]]) -> None:
    pk = stage.enter(lambda context: Suspend(), actor=actor)
    running = start()
    wait_for_state(stage, pk, Status.SUSPENDED)
    before = vars(stage.row(pk))
    running.stop()

    assert {**vars(stage.row(pk)), "_state": None} == {**before, "_state": None}


def test_read_messages_are_not_counted_as_undelivered(stage: Stage, burst: Burst) -> None:
    pk = stage.enter(lambda context: Done(len(context.inbox.take())))
    stage.send(pk)
    stage.enter(lambda context: (Send(pk), Done()) if not context.polls else None, priority=5)

    assert burst(threads=1).loop.outcomes.counts.undelivered == 0
    assert stage.result(pk) == 2


def test_timeout_fails_poll(stage: Stage, burst: Burst) -> None:
    def poll(context: PollContext[Any]) -> Any:
        wait_until(lambda: context.cancelled, "the timeout")
        return Suspend()

    pk = stage.enter(poll, timeout=0.2, max_attempts=1)
    burst()

    assert stage.status(pk) == Status.FAILED
    assert stage.error(pk).startswith("TaskTimeout")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_api_wake_notifies_waiting_executors(stage: Stage, start: Start) -> None:
    pk = stage.enter(lambda context: Done() if context.polls else Sleep(timedelta(hours=1)))
    running = start(poll_interval=3600.0)
    wait_until(lambda: running.process.listener is not None and running.process.listener.is_listening)
    wait_for_state(stage, pk, Status.SUSPENDED)
    wait_until(lambda: running.loop._policy.wait_seconds(1) > 60, "rest")

    with transaction.atomic():
        assert api.wake(pk) == 1
        assert stage.status(pk) == Status.READY
    wait_for_state(stage, pk, Status.SUCCESSFUL)


@pytest.mark.parametrize("as_function", [False, True])
def test_messages_left_by_finished_actor_are_counted(
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
    assert running.loop.outcomes.counts.undelivered == 2
    assert f"message.undelivered id={pk} count=2" in caplog.text
    assert "finished=1 lost=0 undelivered=2" in caplog.text


def test_messages_to_finished_parent_are_counted(stage: Stage, burst: Burst) -> None:
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
    assert running.loop.outcomes.counts.undelivered == 3  # two yields and the end of the child


@pytest.mark.parametrize("rests", [False, True])
def test_message_inserted_by_sql_wakes_actor_before_wake_at(
    stage: Stage, start: Start, options: Options, database: str, rests: bool
) -> None:
    """rests: the first poll left a message, so the actor looks again every POLL_INTERVAL."""
    options(POLL_INTERVAL=3600.0)

    def poll(context: PollContext[Any]) -> Any:
        return Done() if context.inbox.take(str) else Sleep(timedelta(hours=1.5))

    pk = stage.enter(poll)
    if rests:
        stage.send(pk, 1)
    start(threads=1)
    wait_for_state(stage, pk, Status.SUSPENDED)
    if rests:
        stage.change(pk, unread_polls=20, wake_at=stage.row(pk).enqueued_at + timedelta(hours=1))
    InboxMessage.objects.using(database).create(task_id=pk, body="found", sent_at=timezone.now())
    wait_for_state(stage, pk, Status.SUCCESSFUL)
