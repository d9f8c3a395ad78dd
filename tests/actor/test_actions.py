"""Actions that a poll may return, and their effects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from jobqueue import Actor, Done, PollContext, Send, Sleep, Spawn, Suspend, Yield, testing
from jobqueue.values.ids import new_id
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.actors import double
from tests.actor.stage import Stage
from tests.actors import Fibonacci

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_actions_are_equal_by_value() -> None:
    assert Spawn(Fibonacci, 3) == Spawn(Fibonacci, 3)
    assert Spawn(Fibonacci, 3).id != Spawn(Fibonacci, 3).id
    assert Spawn(Fibonacci, 3) != Spawn(Fibonacci, 4)
    assert Fibonacci().poll(testing.context(Fibonacci), 5) == (Spawn(Fibonacci, 4), Spawn(Fibonacci, 3), Suspend())


class TestEnding:
    @pytest.mark.parametrize("returned", [Done({"a": [1]}), [Done({"a": [1]})], (Done({"a": [1]}),)])
    def test_done_ends_actor_with_result(self, stage: Stage, actor: type[Actor[Any]], returned: Any) -> None:
        pk = stage.enter(lambda context: returned, actor=actor)
        stage.run()
        row = stage.row(pk)

        assert stage.result(pk) == {"a": [1]}
        assert (row.polls, row.attempts, len(row.worker_ids)) == (1, 0, 1)
        assert row.finished_at is not None

    @pytest.mark.parametrize("returned", [None, [], ()])
    def test_poll_without_actions_is_repeated_at_once(
        self, stage: Stage, actor: type[Actor[Any]], returned: Any
    ) -> None:
        pk = stage.enter(lambda context: returned if context.polls < 3 else Done(context.polls), actor=actor)
        stage.run()

        assert stage.result(pk) == 3

    def test_poll_with_effects_alone_is_repeated_at_once(self, stage: Stage, actor: type[Actor[Any]]) -> None:
        other = stage.enter(lambda context: Suspend())
        pk = stage.enter(lambda context: Done() if context.polls else [Send(other, 1)], actor=actor)
        stage.run()

        assert stage.status(pk) == Status.SUCCESSFUL


def test_result_struct_is_encoded_like_a_message(stage: Stage) -> None:
    pk = stage.enter(lambda context: Done(actors.Publish("Alps")))
    stage.run()

    assert stage.result(pk) == {"type": "publish", "title": "Alps"}


def test_result_that_is_not_json_fails_actor(stage: Stage) -> None:
    pk = stage.enter(lambda context: Done(object()))
    stage.run()

    assert stage.status(pk) == Status.FAILED
    assert stage.error(pk).startswith("InvalidResult: ")


async def coroutine() -> None: ...


WRONG: dict[str, tuple[Callable[[PollContext[Any]], Any], str]] = {
    "a value": (lambda context: 5, "InvalidActions: poll() returned 5;"),
    "a text": (lambda context: "Done", "InvalidActions: poll() returned 'Done';"),
    "a dict": (lambda context: {"Done": 1}, "InvalidActions: poll() returned {'Done': 1};"),
    "a class": (lambda context: Suspend, "InvalidActions: poll() returned the class Suspend, not Suspend()."),
    "a class among actions": (
        lambda context: (Spawn(Fibonacci, 1), Suspend),
        "InvalidActions: poll() returned the class Suspend, not Suspend().",
    ),
    "a coroutine": (lambda context: coroutine(), "InvalidActions: poll() returned a coroutine"),
    "something among actions": (lambda context: [Yield(1), 5], "InvalidActions: poll() returned 5 among"),
    "Done before others": (lambda context: [Done(), Suspend()], "InvalidActions: Done must come last"),
    "Sleep before effects": (
        lambda context: [Sleep(timedelta(1)), Spawn(Fibonacci, 1)],
        "InvalidActions: Sleep must come last",
    ),
    "Yield without a parent": (lambda context: [Yield(1), Suspend()], "InvalidActions: Yield() sends to the parent"),
    "Spawn of a function": (lambda context: Spawn(print, 1), "InvalidActions: Spawn() takes an actor or a task"),
    "Spawn of a class": (lambda context: Spawn(dict), "InvalidActions: Spawn() takes an actor or a task"),
    "Spawn with wrong arguments": (lambda context: Spawn(Fibonacci), "InvalidArguments: Fibonacci(): missing"),
    "Spawn into another backend": (
        lambda context: Spawn(Fibonacci.using(backend="sqlite"), 1),
        "InvalidActions: A child lives in its parent's backend 'default'",
    ),
    "Send to an unknown id": (lambda context: Send(new_id(), 1), "TaskNotFound: There is no task"),
    "Send to an unknown key": (lambda context: Send("unknown", 1), "TaskNotFound: No live task"),
    "Send to the key of a child that is spawned after": (
        lambda context: (Send("kid", 1), Spawn(Fibonacci.using(key="kid"), 1)),
        "TaskNotFound: No live task",
    ),
    "Send to a function": (
        lambda context: ((child := Spawn(double, 1)), Send(child, 1)),
        "InvalidActions: Send() to double, a function, which reads no messages",
    ),
    "Send to a number": (lambda context: Send(7, 1), "TypeError: A message goes to a task's id or key, not to 7"),  # type: ignore[arg-type]
    "Send of a value that is not JSON": (
        lambda context: Send(context.id, object()),  # type: ignore[arg-type]
        "InvalidArguments: message: object",
    ),
    "Send with an empty dedupe_key": (
        lambda context: Send(context.id, 1, dedupe_key=""),  # type: ignore[arg-type]
        "InvalidArguments: message: dedupe_key must be a text",
    ),
    "Sleep for a number": (lambda context: Sleep(5), "InvalidActions: Sleep(until) must be a datetime or a timedelta"),  # type: ignore[arg-type]
    "Sleep until None": (lambda context: Sleep(None), "InvalidActions: Sleep(until) must be"),  # type: ignore[arg-type]
    "Sleep without a time zone": (
        lambda context: Sleep(datetime(2030, 1, 1)),
        "InvalidActions: Sleep(until) must be an aware datetime",
    ),
    "Sleep for too long": (lambda context: Sleep(timedelta.max), "InvalidActions: Sleep(until) must lie within"),
    "Suspend for a number": (lambda context: Suspend(5), "InvalidActions: Suspend(timeout) must be a timedelta, not 5"),  # type: ignore[arg-type]
    "Suspend until a moment": (
        lambda context: Suspend(datetime(2030, 1, 1)),  # type: ignore[arg-type]
        "InvalidActions: Suspend(timeout) must be a timedelta",
    ),
    "a function that gives no actions": (lambda context: lambda: 5, "InvalidActions: poll() returned 5;"),
    "a function that gives a function": (lambda context: lambda: print, "InvalidActions: poll() returned <built-in"),
    "an async function": (lambda context: coroutine, "InvalidActions: poll() returned a coroutine"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_return_fails_poll_with_clear_error(stage: Stage, case: str) -> None:
    poll, error = WRONG[case]

    def changing_poll(context: PollContext[Any]) -> Any:
        context.state["changed"] = True
        context.inbox.take()
        return poll(context)

    pk = stage.enter(changing_poll)
    stage.send(pk, "message")
    stage.run()

    assert stage.error(pk).startswith(error)
    row = stage.row(pk)
    assert (row.status, row.attempts, row.inner_state, row.polls) == (Status.SCHEDULED, 1, None, 0)
    assert stage.unread(pk) == ["message"]
    assert stage.children(pk) == []


def test_generator_that_raises_midway_fails_poll(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        yield Spawn(Fibonacci, 1)
        raise LookupError("half way")

    pk = stage.enter(poll)
    stage.run()

    assert stage.error(pk) == "LookupError: half way"
    assert stage.status(pk) == Status.SCHEDULED
    assert stage.children(pk) == []


def test_send_takes_ids_keys_and_children_in_order(stage: Stage) -> None:
    seen: list[Any] = []

    def listen(context: PollContext[Any]) -> Any:
        seen.extend((context.key, message.body, message.sender) for message in context.inbox.take())
        return Suspend()

    by_id = stage.enter(listen)
    stage.enter(listen, key="k")

    def poll(context: PollContext[Any]) -> Any:
        child = stage.child(listen)
        return [
            child, Send(by_id, 1), Send("k", 2), Send(child, 3), Send(by_id, 4), Send(str(by_id), 5),
            Send(by_id, 6, dedupe_key="d"), Send(by_id, 7, dedupe_key="d"), Suspend(),
        ]  # fmt: skip

    pk = stage.enter(poll)
    stage.run()

    assert sorted(body for _, body, _ in seen) == [1, 2, 3, 4, 5, 6]
    assert [body for _, body, _ in seen if body not in (2, 3)] == [1, 4, 5, 6]
    assert {sender for *_, sender in seen} == {pk}
