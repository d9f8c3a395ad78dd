"""Concurrent commit functions do not block each other."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group

from jobqueue import Done, PollContext, Send, Suspend
from jobqueue.values.states import Status
from tests.actor.stage import Stage
from tests.engine.sessions import session
from tests.executor.conftest import start as start
from tests.executor.harness import Start
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def database() -> str:
    """Use PostgreSQL alone. On SQLite, a commit function blocks all other writers."""
    return "default"


@pytest.fixture
def stage(database: str, transactional_db: None) -> Stage:
    return Stage(database)


def wait_for_state(stage: Stage, status: Status, *ids: UUID) -> None:
    """Wait until these tasks have a state. Raise on a failed attempt."""

    def have_state() -> bool:
        rows = [stage.row(pk) for pk in ids]
        assert not any(row.errors for row in rows), [row.errors for row in rows]
        return all(row.status == status for row in rows)

    wait_until(have_state, str(status))


def test_commit_functions_send_to_each_other(stage: Stage, start: Start) -> None:
    both_rows_locked = threading.Barrier(2)
    ids: list[UUID] = []

    def poll(context: PollContext[Any]) -> Any:
        if context.polls:
            return Done([message.body for message in context.inbox.take()])

        def commit() -> Any:
            both_rows_locked.wait(DEADLINE_SECONDS)
            return Send(next(pk for pk in ids if pk != context.id), "hello"), Suspend()

        return commit

    ids += [stage.enter(poll, max_attempts=1) for _ in range(2)]
    start(threads=2)
    wait_for_state(stage, Status.SUCCESSFUL, *ids)

    assert [stage.result(pk) for pk in ids] == [["hello"]] * 2
    assert not both_rows_locked.broken


def test_parent_cancelling_locked_child_retries_without_attempt(stage: Stage, start: Start) -> None:
    """The parent retries until the row of the child is unlocked. No attempt is counted."""
    both_rows_locked = threading.Barrier(2)
    parent_has_tried = threading.Event()
    polls: list[int] = []

    def child(context: PollContext[Any]) -> Any:
        def commit() -> Any:
            both_rows_locked.wait(DEADLINE_SECONDS)
            assert parent_has_tried.wait(DEADLINE_SECONDS)
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
                both_rows_locked.wait(DEADLINE_SECONDS)
            Group.objects.create(name=f"try {len(polls)}")
            return Done(len(polls), cancel_children=True)

        return commit

    pk = stage.enter(parent, max_attempts=1)
    start(threads=2)
    wait_for_state(stage, Status.SUCCESSFUL, pk)

    assert stage.status(spawned.id) == Status.CANCELLED
    assert set(polls) == {1}
    assert list(Group.objects.values_list("name", flat=True)) == [f"try {stage.result(pk)}"]
    assert stage.result(pk) > 1


def test_sender_to_locked_receiver_retries_without_attempt(stage: Stage, start: Start) -> None:
    receiver = stage.enter(lambda context: Suspend(timedelta(days=1)))
    polls: list[int] = []

    def poll(context: PollContext[Any]) -> Any:
        polls.append(context.attempt)

        def commit() -> Any:
            Group.objects.create(name="once")
            return Send(receiver, "hello"), Done(len(polls))

        return commit

    start(threads=2)
    wait_for_state(stage, Status.SUSPENDED, receiver)
    with session() as blocker:
        blocker.lock(receiver, strength="UPDATE")
        pk = stage.enter(poll, max_attempts=1)
        beside = stage.enter(lambda context: Done("not held up"))
        wait_for_state(stage, Status.SUCCESSFUL, beside)
        wait_until(lambda: len(polls) > 1, "another try")
        assert not Group.objects.exists()
    wait_for_state(stage, Status.SUCCESSFUL, pk)

    assert set(polls) == {1}
    assert Group.objects.count() == 1
