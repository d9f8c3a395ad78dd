"""A poll that returns a function, which runs inside the committing transaction."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.contrib.auth.models import Group

from jobqueue import Actor, Done, PollContext, Send, Spawn, Stale, Suspend, testing
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def groups(stage: Stage) -> list[str]:
    return sorted(Group.objects.using(stage.database).values_list("name", flat=True))


def add_group(stage: Stage, name: str) -> Group:
    return Group.objects.using(stage.database).create(name=name)


def test_commit_function_commits_all_writes_together(stage: Stage, actor: type[Actor[Any]]) -> None:
    other = stage.enter(lambda context: Suspend())
    stage.run()

    def poll(context: PollContext[Any]) -> Any:
        context.state["seen"] = [message.body for message in context.inbox.take()]

        def commit() -> Any:
            add_group(stage, "contact sheet")
            context.state["written"] = True
            return Spawn(actors.double, 4), Send(other, "written"), Suspend()

        return commit if context.state["seen"] else Suspend()

    pk = stage.enter(poll, actor=actor)
    stage.send(pk, "publish")
    testing.poll_once(pk)

    row = stage.row(pk)
    assert groups(stage) == ["contact sheet"]
    assert row.inner_state == {"seen": ["publish"], "written": True}
    assert (row.status, row.polls) == (Status.SUSPENDED, 1)
    assert stage.unread(pk) == []
    assert stage.unread(other) == ["written"]
    assert [child.args for child in stage.children(pk)] == [[4]]


BROKEN: dict[str, Any] = {
    "raises": lambda stage: 1 / 0,
    "returns a text": lambda stage: "text",
    "sends to an unknown key": lambda stage: Send("unknown", 1),
    "violates a constraint": lambda stage: [add_group(stage, "twice") for _ in range(2)],
    "hides a failed statement": lambda stage: hide_failure(stage),
    "returns a result that is not JSON": lambda stage: Done(object()),
}


def hide_failure(stage: Stage) -> Done:
    add_group(stage, "twice")
    try:
        add_group(stage, "twice")
    except Exception:  # noqa: BLE001
        return Done()
    raise AssertionError


@pytest.mark.parametrize("case", BROKEN)
def test_failed_commit_function_commits_nothing(stage: Stage, actor: type[Actor[Any]], case: str) -> None:
    def poll(context: PollContext[Any]) -> Any:
        context.state["changed"] = True
        context.inbox.take()

        def commit() -> Any:
            add_group(stage, "new")
            return BROKEN[case](stage)

        return commit

    pk = stage.enter(poll, actor=actor)
    stage.send(pk, "message")
    testing.poll_once(pk)

    row = stage.row(pk)
    assert row.status == (Status.FAILED if "result" in case else Status.SCHEDULED)
    assert (row.attempts, row.polls, row.inner_state) == (1, 0, None)
    assert row.errors[-1]["message"]
    assert stage.unread(pk) == ["message"]
    assert groups(stage) == []
    assert stage.run() == []


def test_stale_rolls_back_and_repeats_poll_after_short_wait(
    stage: Stage, actor: type[Actor[Any]], waits: list[float | None]
) -> None:
    def poll(context: PollContext[Any]) -> Any:
        context.state["n"] = context.state.get("n", 0) + 1
        context.inbox.take()

        def commit() -> Any:
            add_group(stage, "new")
            if len(waits) < 3:
                raise Stale
            return Done(context.state["n"])

        return commit

    pk = stage.enter(poll, actor=actor)
    stage.send(pk, "message")
    for _ in range(3):
        testing.poll_once(pk)
        row = stage.row(pk)
        assert (row.status, row.attempts, row.inner_state, row.errors) == (Status.SCHEDULED, 0, None, [])
        assert stage.unread(pk) == ["message"]
        assert groups(stage) == []
        stage.advance(1)
    stage.run()

    assert stage.result(pk) == 1
    assert groups(stage) == ["new"]
    assert waits[:3] == [0.1, 0.2, 0.4]


def stale() -> None:
    raise Stale


def test_tenth_stale_in_a_row_counts_as_attempt(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        raise Stale("of the poll itself")

    pk = stage.enter(poll)
    attempts = []
    for _ in range(21):
        testing.poll_once(pk)
        attempts.append(stage.row(pk).attempts)
        stage.advance(60)

    assert attempts == [0] * 9 + [1] * 10 + [2] * 2
    assert stage.error(pk) == "Stale: of the poll itself"


def test_successful_poll_resets_count_of_stale(stage: Stage) -> None:
    """Also if it leaves messages unread, which is no Stale."""
    number = itertools.count(1)
    pk = stage.enter(lambda context: stale if next(number) % 6 else Suspend())
    stage.send(pk, "unread")
    for _ in range(24):
        testing.poll_once(pk)
        stage.advance(1)

    row = stage.row(pk)
    assert (row.polls, row.attempts, row.errors) == (4, 0, [])


def test_commit_function_is_skipped_if_claim_is_lost(stage: Stage) -> None:
    ran: list[int] = []

    def poll(context: PollContext[Any]) -> Any:
        stage.change(pk, claim_number=99)
        return lambda: ran.append(1)

    pk = stage.enter(poll)
    polled = testing.poll_once(pk)

    assert (polled.status, ran) == (None, [])
    assert stage.status(pk) == Status.RUNNING
