"""What a poll may return, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from jobqueue import Actor, Done, PollContext, Send, Sleep, Spawn, Suspend, Yield, testing
from jobqueue.records import Status
from jobqueue.serialization.ids import new_id
from tests.actor import actors
from tests.actor.actors import double
from tests.actor.stage import AsyncPuppet, Puppet, Stage
from tests.actors import Fibonacci

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_actions_are_values() -> None:
    assert Spawn(Fibonacci, 3) == Spawn(Fibonacci, 3)
    assert Spawn(Fibonacci, 3).id != Spawn(Fibonacci, 3).id
    assert Spawn(Fibonacci, 3) != Spawn(Fibonacci, 4)
    assert Fibonacci().poll(testing.context(Fibonacci), 5) == (Spawn(Fibonacci, 4), Spawn(Fibonacci, 3), Suspend())


@pytest.mark.parametrize("actor", [Puppet, AsyncPuppet])
class TestEnding:
    def enter(self, stage: Stage, actor: type[Actor[Any]], poll: Callable[[PollContext[Any]], Any]) -> UUID:
        async def apoll(context: PollContext[Any]) -> Any:
            return poll(context)

        return stage.enter(apoll if actor is AsyncPuppet else poll, actor=actor)

    @pytest.mark.parametrize("returned", [Done({"a": [1]}), [Done({"a": [1]})], (Done({"a": [1]}),)])
    def test_done(self, stage: Stage, actor: type[Actor[Any]], returned: Any) -> None:
        pk = self.enter(stage, actor, lambda context: returned)
        stage.run()
        row = stage.row(pk)

        assert stage.result(pk) == {"a": [1]}
        assert (row.polls, row.attempts, len(row.worker_ids)) == (1, 0, 1)
        assert row.finished_at is not None

    @pytest.mark.parametrize("returned", [None, [], ()])
    def test_nothing_means_poll_again_now(self, stage: Stage, actor: type[Actor[Any]], returned: Any) -> None:
        pk = self.enter(stage, actor, lambda context: returned if context.polls < 3 else Done(context.polls))
        stage.run()

        assert stage.result(pk) == 3

    def test_effects_alone_mean_poll_again_now(self, stage: Stage, actor: type[Actor[Any]]) -> None:
        other = stage.enter(lambda context: Suspend())
        pk = self.enter(stage, actor, lambda context: Done() if context.polls else [Send(other, 1)])
        stage.run()

        assert stage.status(pk) == Status.SUCCESSFUL

    def test_commit_function(self, stage: Stage, actor: type[Actor[Any]]) -> None:
        pk = self.enter(stage, actor, lambda context: lambda: Done("from inside"))
        stage.run()

        assert stage.result(pk) == "from inside"


def test_results_are_encoded_as_messages_are(stage: Stage) -> None:
    pk = stage.enter(lambda context: Done(actors.Publish("Alps")))
    stage.run()

    assert stage.result(pk) == {"type": "publish", "title": "Alps"}


def test_result_that_is_not_json_ends_the_task(stage: Stage) -> None:
    pk = stage.enter(lambda context: Done(object()))
    stage.run()

    assert stage.status(pk) == Status.FAILED
    assert stage.error(pk).startswith("InvalidResult: ")


async def nobody_awaits() -> None: ...


WRONG: dict[str, tuple[Callable[[PollContext[Any]], Any], str]] = {
    "a value": (lambda context: 5, "InvalidActions: poll() returned 5;"),
    "a text": (lambda context: "Done", "InvalidActions: poll() returned 'Done';"),
    "a dict": (lambda context: {"Done": 1}, "InvalidActions: poll() returned {'Done': 1};"),
    "a class": (lambda context: Suspend, "InvalidActions: poll() returned the class Suspend, not Suspend()."),
    "a class among actions": (
        lambda context: (Spawn(Fibonacci, 1), Suspend),
        "InvalidActions: poll() returned the class Suspend, not Suspend().",
    ),
    "a coroutine": (lambda context: nobody_awaits(), "InvalidActions: poll() returned a coroutine"),
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
    "Send to nobody": (lambda context: Send(new_id(), 1), "TaskNotFound: There is no task"),
    "Send to an unknown key": (lambda context: Send("nobody", 1), "TaskNotFound: No live task"),
    "Send to a function": (
        lambda context: ((child := Spawn(double, 1)), Send(child, 1)),
        "InvalidActions: Send() to double, a function, which reads no messages",
    ),
    "Send to a number": (lambda context: Send(7, 1), "TypeError: A message goes to a task's id or key, not to 7"),  # type: ignore[arg-type]
    "Send of what is no JSON": (lambda context: Send(context.id, object()), "InvalidArguments: message: object"),  # type: ignore[arg-type]
    "Sleep for a number": (lambda context: Sleep(5), "InvalidActions: Sleep(until) must be a datetime or a timedelta"),  # type: ignore[arg-type]
    "Sleep for ever": (lambda context: Sleep(None), "InvalidActions: Sleep(until) must be"),  # type: ignore[arg-type]
    "Sleep without a time zone": (
        lambda context: Sleep(datetime(2030, 1, 1)),
        "InvalidActions: Sleep(until) must be an aware datetime",
    ),
    "Sleep for an aeon": (lambda context: Sleep(timedelta.max), "InvalidActions: Sleep(until) must lie within"),
    "Suspend for a number": (lambda context: Suspend(5), "InvalidActions: Suspend(timeout) must be a timedelta, not 5"),  # type: ignore[arg-type]
    "Suspend until a moment": (
        lambda context: Suspend(datetime(2030, 1, 1)),  # type: ignore[arg-type]
        "InvalidActions: Suspend(timeout) must be a timedelta",
    ),
    "a function that gives no actions": (lambda context: lambda: 5, "InvalidActions: poll() returned 5;"),
    "a function that gives a function": (lambda context: lambda: print, "InvalidActions: poll() returned <built-in"),
    "an async function": (lambda context: nobody_awaits, "InvalidActions: poll() returned a coroutine"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_return_is_a_failed_poll_with_a_clear_error(stage: Stage, case: str) -> None:
    poll, error = WRONG[case]

    def noted(context: PollContext[Any]) -> Any:
        context.state["changed"] = True
        context.inbox.take()
        return poll(context)

    pk = stage.enter(noted)
    stage.send(pk, "mail")
    stage.run()

    assert stage.error(pk).startswith(error)
    row = stage.row(pk)
    assert (row.status, row.attempts, row.inner_state, row.polls) == (Status.SCHEDULED, 1, None, 0)
    assert stage.unread(pk) == ["mail"]
    assert stage.children(pk) == []


def test_generator_that_fails_half_way_is_a_failed_poll(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        yield Spawn(Fibonacci, 1)
        raise LookupError("half way")

    pk = stage.enter(poll)
    stage.run()

    assert stage.error(pk) == "LookupError: half way"
    assert stage.status(pk) == Status.SCHEDULED
    assert stage.children(pk) == []


def test_sends_of_a_poll_go_all_or_none(stage: Stage) -> None:
    other = stage.enter(lambda context: Suspend())
    ended = stage.enter(lambda context: Done())
    stage.run()
    pk = stage.enter(lambda context: [Spawn(Fibonacci, 1), Send(other, 1), Send(ended, 2), Suspend()])
    stage.run()

    assert stage.error(pk) == f"TaskFinished: Task {ended} has ended and takes no messages."
    assert stage.unread(other) == []
    assert stage.children(pk) == []


def test_messages_are_sent_in_order_to_ids_keys_and_children(stage: Stage) -> None:
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


def test_actor_may_send_to_itself(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        if context.polls == 0:
            return Send(context.id, "note to self"), Suspend()  # type: ignore[arg-type]
        return Done(context.inbox.popleft().body)

    pk = stage.enter(poll)
    stage.run()

    assert stage.result(pk) == "note to self"
