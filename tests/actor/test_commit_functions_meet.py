"""Functions that run inside committing transactions at the same moment: none waits for another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

import jobqueue
from jobqueue import Done, PollContext, Send, Suspend
from jobqueue.models import Task
from jobqueue.records import Status
from tests.actor.stage import Stage
from tests.executor.conftest import start as start
from tests.executor.harness import DEADLINE, Start, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def database() -> str:
    """PostgreSQL alone: SQLite has one writer, who holds the database while such a function runs."""
    return "default"


@pytest.fixture
def stage(database: str, transactional_db: None) -> Stage:
    return Stage(database)


def wait_until(stage: Stage, status: Status, *ids: UUID) -> None:
    """Wait until these have entered a state; a failed try ends the wait."""

    def look() -> bool:
        rows = [stage.row(pk) for pk in ids]
        assert not any(row.errors for row in rows), [row.errors for row in rows]
        return all(row.status == status for row in rows)

    wait_for(look, str(status))


@contextmanager
def locked_for_update(pk: UUID) -> Iterator[None]:
    """Let somebody else's transaction hold a row so that not even a message can be sent to it."""
    is_locked, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=pk)
            is_locked.set()
            may_end.wait(DEADLINE)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_locked.wait(DEADLINE)
    try:
        yield
    finally:
        may_end.set()
        thread.join(DEADLINE)


def test_two_that_send_to_each_other(stage: Stage, start: Start) -> None:
    both_hold_their_rows = threading.Barrier(2)
    ids: list[UUID] = []

    def poll(context: PollContext[Any]) -> Any:
        if context.polls:
            return Done([message.body for message in context.inbox.take()])

        def commit() -> Any:
            both_hold_their_rows.wait(DEADLINE)
            return Send(next(pk for pk in ids if pk != context.id), "hello"), Suspend()

        return commit

    ids += [stage.enter(poll, max_attempts=1) for _ in range(2)]
    start(threads=2)
    wait_until(stage, Status.SUCCESSFUL, *ids)

    assert [stage.result(pk) for pk in ids] == [["hello"]] * 2
    assert not both_hold_their_rows.broken


def test_a_parent_that_sends_to_a_child_that_ends(stage: Stage, start: Start) -> None:
    both_hold_their_rows = threading.Barrier(2)
    parent_has_committed = threading.Event()

    def child(context: PollContext[Any]) -> Any:
        def commit() -> Any:
            both_hold_their_rows.wait(DEADLINE)
            assert parent_has_committed.wait(DEADLINE)  # a task that has ended takes no messages
            return Done("the end")

        return commit

    spawned = stage.child(child, max_attempts=1)

    def parent(context: PollContext[Any]) -> Any:
        def commit() -> Any:
            both_hold_their_rows.wait(DEADLINE)
            return Send(spawned.id, "stop"), Suspend()

        match context.polls:
            case 0:
                return spawned
            case 1:
                return commit
        return Done([message.body for message in context.inbox.take()])

    pk = stage.enter(parent, max_attempts=1)
    start(threads=2)
    wait_until(stage, Status.SUSPENDED, pk)
    parent_has_committed.set()
    wait_until(stage, Status.SUCCESSFUL, pk)

    assert stage.result(pk) == ["the end"]


def test_a_parent_that_cancels_a_child_that_ends(stage: Stage, start: Start) -> None:
    both_hold_their_rows = threading.Barrier(2)

    def child(context: PollContext[Any]) -> Any:
        def commit() -> Any:
            both_hold_their_rows.wait(DEADLINE)
            return Done("the end")

        return commit

    spawned = stage.child(child, max_attempts=1)

    def parent(context: PollContext[Any]) -> Any:
        def commit() -> Any:
            both_hold_their_rows.wait(DEADLINE)
            assert not jobqueue.cancel(spawned.id).busy
            return Done("cancelled it")

        return commit if context.polls else spawned

    pk = stage.enter(parent, max_attempts=1)
    start(threads=2)
    wait_until(stage, Status.SUCCESSFUL, pk)
    wait_until(stage, Status.SUCCESSFUL, spawned.id)


def test_one_that_ends_with_a_child_that_sends_to_it(stage: Stage, start: Start) -> None:
    """It cannot end while the child's row is held, and begins again when it can: no attempt is counted."""
    both_hold_their_rows = threading.Barrier(2)
    parent_has_tried = threading.Event()
    polls: list[int] = []

    def child(context: PollContext[Any]) -> Any:
        def commit() -> Any:
            both_hold_their_rows.wait(DEADLINE)
            assert parent_has_tried.wait(DEADLINE)
            return Suspend()

        return commit

    spawned = stage.child(child, max_attempts=1)

    def parent(context: PollContext[Any]) -> Any:
        if context.polls == 0:
            return spawned
        polls.append(context.attempt)
        if len(polls) > 1:
            parent_has_tried.set()

        def commit() -> Any:
            if len(polls) == 1:
                both_hold_their_rows.wait(DEADLINE)
            Group.objects.create(name=f"try {len(polls)}")
            return Done(len(polls), cancel_children=True)

        return commit

    pk = stage.enter(parent, max_attempts=1)
    start(threads=2)
    wait_until(stage, Status.SUCCESSFUL, pk)

    assert stage.status(spawned.id) == Status.CANCELLED
    assert set(polls) == {1}
    assert list(Group.objects.values_list("name", flat=True)) == [f"try {stage.result(pk)}"]
    assert stage.result(pk) > 1


def test_one_whose_receiver_is_locked_against_messages_begins_again(stage: Stage, start: Start) -> None:
    receiver = stage.enter(lambda context: Suspend(timedelta(days=1)))
    polls: list[int] = []

    def poll(context: PollContext[Any]) -> Any:
        polls.append(context.attempt)

        def commit() -> Any:
            Group.objects.create(name="once")
            return Send(receiver, "hello"), Done(len(polls))

        return commit

    start(threads=2)
    wait_until(stage, Status.SUSPENDED, receiver)
    with locked_for_update(receiver):
        pk = stage.enter(poll, max_attempts=1)
        beside = stage.enter(lambda context: Done("not held up"))
        wait_until(stage, Status.SUCCESSFUL, beside)
        wait_for(lambda: len(polls) > 1, "another try")
        assert not Group.objects.exists()
    wait_until(stage, Status.SUCCESSFUL, pk)

    assert set(polls) == {1}
    assert Group.objects.count() == 1
