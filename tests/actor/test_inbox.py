"""Messages in the inbox of an actor: reading, leaving and decoding them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from jobqueue import Done, Kind, PollContext, Sleep, Suspend, testing
from jobqueue.declarations.actor import Inbox
from jobqueue.engine import engine_for
from jobqueue.values.ids import new_id
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage
from tests.fixtures import Options

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def bodies(messages: Any) -> list[Any]:
    return [message.body for message in messages]


class TestInbox:
    def inbox(self) -> Inbox:
        children = testing.message(2, kind=Kind.CHILD_SUCCESSFUL), testing.message(kind=Kind.CHILD_FAILED)
        return testing.context(actors.WithoutState, inbox=[1, "a", children[0], 3, children[1]]).inbox

    @pytest.mark.parametrize(
        ("wanted", "taken"),
        [
            ([], [1, "a", 2, 3, None]),
            ([Kind.MESSAGE], [1, "a", 3]),
            ([Kind.CHILD_FAILED, Kind.CHILD_SUCCESSFUL], [2, None]),
            ([int | str], [1, "a", 3]),
            ([str, Kind.CHILD_FAILED], ["a", None]),
            ([int], [1, 3]),  # not the results of children
        ],
    )
    def test_take_filters_by_kind_type_or_union(self, wanted: Any, taken: Any) -> None:
        inbox = self.inbox()
        assert bodies(inbox) == [1, "a", 2, 3, None]
        assert bodies(inbox.take(*wanted)) == taken
        assert bodies(inbox.taken) == taken
        assert len(inbox) == 5 - len(taken)

    @pytest.mark.parametrize("wanted", ["CHILD", actors.CountState, actors.CountState | int, list[int]])
    def test_take_refuses_other_filters(self, wanted: Any) -> None:
        for inbox in (self.inbox(), Inbox()):
            with pytest.raises(TypeError, match=r"take\(\) needs a Kind or classes such as dict, not"):
                inbox.take(wanted)

    def test_take_by_dict_returns_typed_dicts(self) -> None:
        inbox = testing.context(actors.TypedByDict, inbox=[{"count": 1}]).inbox
        assert bodies(inbox.take(dict)) == [{"count": 1}]

    def test_popleft_consumes_oldest_also_during_iteration(self) -> None:
        inbox = self.inbox()
        assert bodies(inbox.popleft() for _ in inbox) == [1, "a", 2, 3, None]
        with pytest.raises(IndexError, match="empty"):
            inbox.popleft()


def test_messages_arrive_in_order_with_all_fields(stage: Stage) -> None:
    seen: list[Any] = []

    def poll(context: PollContext[Any]) -> Any:
        seen.extend(context.inbox.take())
        return Suspend()

    pk, sender = stage.enter(poll), new_id()
    stage.run()
    ids = [stage.send(pk, {"n": n}, sender=str(sender) if n else None) for n in range(5)]
    stage.run()

    assert bodies(seen) == [{"n": n} for n in range(5)]
    assert [message.id for message in seen] == ids
    assert [message.sender for message in seen] == [None, *[sender] * 4]
    assert {message.kind for message in seen} == {Kind.MESSAGE}
    assert [message.sent_at for message in seen] == sorted(message.sent_at for message in seen)
    assert stage.unread(pk) == []


@pytest.fixture
def long_first_wait(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every wait longer than a slow test, so that a repeated poll was immediate."""
    options(POLL_INTERVAL=3600.0)
    monkeypatch.setattr("jobqueue.executor.running.actor_runner.FIRST_WAIT_SECONDS", 600.0)


class Recorder:
    """
    An actor of a test that records each poll: the bodies in its inbox, and whether it timed out.

    take: consumes messages. wait: what a poll returns; a list has one for each poll.
    """

    def __init__(self, stage: Stage, wait: Any = Suspend(), take: Callable[[Inbox], Any] | None = None) -> None:  # noqa: B008
        self.inboxes: list[Any] = []
        self.timed_out: list[bool] = []

        def poll(context: PollContext[Any]) -> Any:
            self.inboxes.append(bodies(context.inbox))
            self.timed_out.append(context.timed_out)
            if take is not None and context.inbox:
                take(context.inbox)
            return wait.pop(0) if isinstance(wait, list) else wait

        self.pk = stage.enter(poll)

    def play(self, stage: Stage, *steps: Any) -> None:
        """Send each text, and let each number of seconds pass. Run until idle after each step."""
        for step in steps:
            stage.send(self.pk, step) if isinstance(step, str) else stage.advance(step)
            stage.run()


class TestLeftUnread:
    def test_poll_is_repeated_at_once_if_messages_were_taken(self, stage: Stage) -> None:
        recorder = Recorder(stage, take=lambda inbox: inbox.popleft())
        for n in range(3):
            stage.send(recorder.pk, n)
        stage.run()

        assert recorder.inboxes == [[0, 1, 2], [1, 2], [2]]
        assert stage.status(recorder.pk) == Status.SUSPENDED

    @pytest.mark.usefixtures("long_first_wait")
    def test_newer_message_repeats_poll_at_once(self, stage: Stage) -> None:
        recorder = Recorder(stage, take=lambda inbox: stage.send(recorder.pk, "during") if len(inbox) == 1 else None)
        recorder.play(stage, "before", "after")

        assert recorder.inboxes == [["before"], ["before", "during"], ["before", "during", "after"]]

    def test_wait_doubles_while_messages_are_left(
        self, stage: Stage, options: Options, waits: list[float | None]
    ) -> None:
        options(POLL_INTERVAL=0.7)
        recorder = Recorder(stage)
        stage.send(recorder.pk, 1)
        for _ in range(5):
            testing.poll_once(recorder.pk)
            assert stage.status(recorder.pk) == Status.SUSPENDED
            stage.advance(0.7)

        assert len(recorder.inboxes) == 5
        assert waits == [0.1, 0.2, 0.4, 0.7, 0.7]

    def test_shorter_sleep_replaces_wait_for_left_messages(self, stage: Stage, waits: list[float | None]) -> None:
        recorder = Recorder(stage, Sleep(timedelta(seconds=0.01)))
        stage.send(recorder.pk)
        testing.poll_once(recorder.pk)

        assert waits == [0.01]

    @pytest.mark.parametrize("wait", [Suspend(timedelta(minutes=10)), Sleep(timedelta(minutes=10))])
    def test_timeout_is_kept_while_actor_looks_at_left_messages(
        self, stage: Stage, options: Options, wait: Any
    ) -> None:
        options(POLL_INTERVAL=60.0)
        recorder = Recorder(stage, wait)
        recorder.play(stage, "not this one")
        for _ in range(2):  # the next timeout starts after the first
            recorder.timed_out.clear()
            recorder.play(stage, *[60] * 9)
            assert len(recorder.timed_out) > 5
            assert True not in recorder.timed_out
            recorder.play(stage, 60)
            assert recorder.timed_out[-1] is True

    @pytest.mark.usefixtures("long_first_wait")
    @pytest.mark.parametrize(
        ("steps", "timed_out"),
        [
            # A newer message that is left does not move the timeout.
            ([b"1", 540, b"2", 61], [False, False, True]),
            # A message that is taken does.
            ([b"1", 540, "taken", 540, 61], [False, False, False, True]),
        ],
    )
    def test_only_a_taken_message_moves_timeout(self, stage: Stage, steps: Any, timed_out: list[bool]) -> None:
        recorder = Recorder(stage, Suspend(timedelta(minutes=10)), take=lambda inbox: inbox.take(str))
        for step in steps:
            if isinstance(step, bytes):  # a body that is left
                stage.send(recorder.pk, int(step))
                stage.run()
            else:
                recorder.play(stage, step)

        assert recorder.timed_out == timed_out

    @pytest.mark.usefixtures("long_first_wait")
    def test_earlier_timeout_or_none_replaces_timeout(self, stage: Stage) -> None:
        recorder = Recorder(stage, [Suspend(timedelta(hours=1)), Suspend(timedelta(minutes=5)), Suspend()])
        for n in range(2):
            stage.send(recorder.pk, n)
            stage.run()
        timeout_at = stage.row(recorder.pk).timeout_at
        assert timeout_at is not None
        assert timeout_at < timezone.now() + timedelta(minutes=6)
        recorder.play(stage, "and another")

        assert stage.row(recorder.pk).timeout_at is None
        assert recorder.timed_out == [False] * 3

    def test_messages_above_read_limit_repeat_poll(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        limit_reads(monkeypatch, 2)
        recorder = Recorder(stage, take=lambda inbox: inbox.take())
        for n in range(5):
            stage.send(recorder.pk, n)
        stage.run()

        assert recorder.inboxes == [[0, 1], [2, 3], [4]]

    @pytest.mark.parametrize("count", [4, 40])
    def test_awaited_message_behind_read_limit_is_found(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        limit_reads(monkeypatch, 4)
        recorder = Recorder(stage, take=lambda inbox: inbox.take(str))
        stage.run()
        for n in range(count):
            stage.send(recorder.pk, n)
        stage.send(recorder.pk, "go")
        stage.run()

        assert any("go" in inbox for inbox in recorder.inboxes[:6])
        assert "go" not in stage.unread(recorder.pk)

    def test_left_messages_above_read_limit_cause_no_hot_loop(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, waits: list[float | None]
    ) -> None:
        limit_reads(monkeypatch, 4)
        recorder = Recorder(stage)
        for n in range(9):
            stage.send(recorder.pk, n)
        stage.run()

        assert [len(messages) for messages in recorder.inboxes] == [4, 8, 9]
        assert stage.status(recorder.pk) == Status.SUSPENDED
        assert waits == [0.1, 0.2, 0.4]


def limit_reads(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Let a poll read this many messages."""
    engine = engine_for("default")
    monkeypatch.setattr(engine.messages, "read_messages", partial(engine.messages.read_messages, limit=limit))


class TestTyped:
    def test_body_is_decoded_as_message_type(self, stage: Stage) -> None:
        result = actors.TypedActor.enqueue()
        pk = UUID(result.id)
        stage.run()
        stage.send(pk, actors.Publish("Alps"))
        stage.run()

        assert stage.result(pk) == "published Alps"

    @pytest.mark.parametrize(
        ("body", "decoded"),
        [
            (actors.Approve("me", date(2030, 1, 1)), actors.Approve("me", date(2030, 1, 1))),
            ({"type": "approve", "by": "you"}, actors.Approve("you")),
            (actors.Reject(), actors.Reject()),
            ({"type": "refuse"}, actors.Reject("refuse")),
            ({"type": "publish", "title": "Alps"}, actors.Publish("Alps")),
            ("approve", "approve"),
        ],
    )
    def test_dataclasses_of_union_are_chosen_by_type_field(self, stage: Stage, body: Any, decoded: Any) -> None:
        pk = UUID(actors.TypedByDataclasses.enqueue().id)
        stage.send(pk, body)
        stage.run()

        assert stage.result(pk) == repr(decoded)
        assert testing.context(actors.TypedByDataclasses, inbox=[body]).inbox.popleft().body == decoded

    @pytest.mark.parametrize("body", [{"type": "sell"}, {"type": ["approve"]}, {"type": "approve"}, {}, 5])
    def test_body_outside_union_fails_poll(self, stage: Stage, body: Any) -> None:
        pk = UUID(actors.TypedByDataclasses.enqueue().id)
        number = stage.send(pk, body)
        stage.run()

        assert stage.error(pk).startswith(
            f"UndecodableMessage: Message {number} from outside is not what TypedByDataclasses.Message allows: "
        )

    @pytest.mark.parametrize(
        ("actor", "body", "reason"),
        [
            (actors.TypedActor, {"type": "sell"}, ""),
            (actors.TypedActor, {"type": "publish", "title": 7}, ""),
            (actors.TypedActor, "publish", ""),
            (actors.TypedActor, None, ""),
            (actors.Checked, {"article": "mug"}, "KeyError: 'mug'"),  # its class raises
        ],
    )
    def test_undecodable_body_fails_poll_and_names_message(
        self, stage: Stage, actor: Any, body: Any, reason: str
    ) -> None:
        pk = UUID(actor.enqueue().id)
        stage.run()
        number = stage.send(pk, body, sender=pk)
        stage.run()

        assert stage.status(pk) == Status.SCHEDULED
        assert stage.error(pk).startswith(
            f"UndecodableMessage: Message {number} from {pk} is not what {actor.__name__}.Message allows: {reason}"
        )
        assert stage.unread(pk) == [body]
        stage.advance(10)
        stage.run()
        assert stage.status(pk) == Status.FAILED
        assert stage.row(pk).attempts == 2

    def test_undecodable_body_is_read_after_new_code_is_deployed(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pk = UUID(actors.TypedActor.enqueue().id)
        stage.send(pk, {"type": "sell"})
        stage.run()
        monkeypatch.setattr(actors.TypedActor, "Message", dict)
        monkeypatch.setattr(actors.TypedActor, "poll", lambda actor, context: Done(context.inbox.popleft().body))
        stage.advance(10)
        stage.run()

        assert stage.result(pk) == {"type": "sell"}
