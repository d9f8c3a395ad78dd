"""The state that an actor keeps between polls."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jobqueue import Done, PollContext, testing
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

KINDS = [
    actors.WithDataclass,
    actors.WithTypedDict,
    actors.WithStruct,
    actors.WithoutState,
    actors.WithNumberedState,
]


@pytest.mark.parametrize("actor", KINDS)
def test_next_poll_sees_changed_state(stage: Stage, actor: Any) -> None:
    result = actor.enqueue()

    assert len(testing.run_until_idle()) == 3
    assert stage.result(UUID(result.id)) == 3


def test_state_is_stored_as_json_and_undecodable_one_waits_for_code(stage: Stage) -> None:
    pk = UUID(actors.WithDataclass.enqueue().id)
    testing.poll_once(pk)
    assert stage.row(pk).inner_state == {"count": 1, "items": [{"name": "a", "at": "2030-01-01T00:00:00"}]}

    stage.change(pk, inner_state={"count": "three"})
    with pytest.raises(AssertionError, match=r"not take the stored state: WithDataclass\.State does not allow it"):
        testing.poll_once(pk)
    assert stage.status(pk) == Status.AWAITING_CODE


@pytest.mark.parametrize("actor", KINDS[:3])
def test_poll_fails_if_state_does_not_fit_its_type(stage: Stage, actor: Any) -> None:
    pk = UUID(actor.enqueue("three").id)
    testing.poll_once(pk)

    assert stage.error(pk).startswith(f"ValueError: The state is not what {actor.__name__}.State allows")
    assert stage.row(pk).inner_state is None


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), "ValueError: Puppet: the state is not JSON: "),
        ({1, 2, object()}, "ValueError: Puppet: the state is not JSON: "),
        (LOOP, "ValueError: Puppet: the state contains itself, or is nested too deep for JSON"),
        (float("nan"), "InvalidArguments: Puppet: state['bad']: NaN is not JSON"),
        ("a\x00b", "InvalidArguments: Puppet: state['bad']: a NUL character cannot be stored"),
    ],
    ids=["object", "set", "loop", "NaN", "NUL"],
)
def test_poll_fails_if_state_is_not_json(stage: Stage, value: Any, error: str) -> None:
    def poll(context: PollContext[Any]) -> Any:
        context.state["bad"] = value

    pk = stage.enter(poll)
    stage.run()

    assert stage.error(pk).startswith(error)
    assert stage.status(pk) == Status.SCHEDULED
    assert stage.row(pk).inner_state is None


def test_state_may_be_replaced(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        if context.state:
            return Done(context.state)
        context.state = {"new": [10**30, 1.5, "é"]}
        return None

    pk = stage.enter(poll)
    stage.run()

    assert stage.result(pk) == {"new": [10**30, 1.5, "é"]}


def test_failed_poll_leaves_state_and_inbox_as_they_were(stage: Stage) -> None:
    seen: list[Any] = []

    def poll(context: PollContext[Any]) -> Any:
        seen.append((dict(context.state), [m.body for m in context.inbox]))
        context.state["n"] = context.state.get("n", 0) + 1
        context.inbox.take()
        if len(seen) == 1:
            return None
        if len(seen) < 4:
            raise ValueError("failed")
        return Done()

    pk = stage.enter(poll)
    testing.poll_once(pk)
    for body in ("a", "b"):
        stage.send(pk, body)
    for _ in range(3):
        stage.run()
        stage.advance(60)

    assert seen == [({}, []), *[({"n": 1}, ["a", "b"])] * 3]
    assert stage.status(pk) == Status.SUCCESSFUL
