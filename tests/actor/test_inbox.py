"""Messages in the inbox of an actor: reading, leaving and decoding them."""

from __future__ import annotations

from datetime import date, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from jobqueue import Done, Kind, PollContext, Sleep, Suspend, testing
from jobqueue.actor import Inbox
from jobqueue.engine import engine_for
from jobqueue.records import Status
from jobqueue.serialization.ids import new_id
from tests.actor import actors
from tests.actor.conftest import Options
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def bodies(messages: Any) -> list[Any]:
    return [message.body for message in messages]


class TestInbox:
    def inbox(self) -> Inbox:
        return testing.context(
            actors.WithoutState,
            inbox=[1, "a", testing.message(2, kind=Kind.CHILD_SUCCESSFUL), 3, testing.message(kind=Kind.CHILD_FAILED)],
        ).inbox

    def test_inbox_lists_messages_in_order(self) -> None:
        assert bodies(self.inbox()) == [1, "a", 2, 3, None]
        assert bodies(self.inbox().take()) == [1, "a", 2, 3, None]

    def test_taken_messages_leave_inbox(self) -> None:
        inbox = self.inbox()
        inbox.take(Kind.CHILD_SUCCESSFUL)
        inbox.popleft()
        assert bodies(inbox) == ["a", 3, None]
        assert bodies(inbox.taken) == [2, 1]
        assert len(inbox) == 3

    def test_take_filters_by_kind_type_or_union(self) -> None:
        assert bodies(self.inbox().take(Kind.MESSAGE)) == [1, "a", 3]
        assert bodies(self.inbox().take(Kind.CHILD_FAILED, Kind.CHILD_SUCCESSFUL)) == [2, None]
        assert bodies(self.inbox().take(int | str)) == [1, "a", 3]
        assert bodies(self.inbox().take(str, Kind.CHILD_FAILED)) == ["a", None]

    def test_take_by_type_skips_results_of_children(self) -> None:
        assert bodies(self.inbox().take(int)) == [1, 3]

    @pytest.mark.parametrize("wanted", ["CHILD", actors.Tally, actors.Tally | int, list[int]])
    def test_take_refuses_other_filters(self, wanted: Any) -> None:
        for inbox in (self.inbox(), Inbox()):
            with pytest.raises(TypeError, match=r"take\(\) needs a Kind or classes such as dict, not"):
                inbox.take(wanted)

    def test_take_by_dict_returns_typed_dicts(self) -> None:
        inbox = testing.context(actors.TypedByDict, inbox=[{"count": 1}]).inbox
        assert bodies(inbox.take(dict)) == [{"count": 1}]

    def test_popleft_from_empty_inbox_raises(self) -> None:
        with pytest.raises(IndexError, match="empty"):
            Inbox().popleft()

    def test_inbox_may_change_during_iteration(self) -> None:
        inbox = self.inbox()
        assert bodies(inbox.popleft() for _ in inbox) == [1, "a", 2, 3, None]


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


class TestLeftUnread:
    def enter_recorder(self, stage: Stage, poll: Any) -> tuple[UUID, list[Any]]:
        """Enqueue an actor. Return its id, and a list of the inbox at each poll."""
        seen: list[Any] = []

        def recorder(context: PollContext[Any]) -> Any:
            seen.append(bodies(context.inbox))
            return poll(context)

        return stage.enter(recorder), seen

    def test_poll_is_repeated_at_once_if_messages_were_taken(self, stage: Stage) -> None:
        def one_at_a_time(context: PollContext[Any]) -> Any:
            if context.inbox:
                context.inbox.popleft()
            return Suspend()

        pk, seen = self.enter_recorder(stage, one_at_a_time)
        for n in range(3):
            stage.send(pk, n)
        stage.run()

        assert seen == [[0, 1, 2], [1, 2], [2]]
        assert stage.status(pk) == Status.SUSPENDED

    @pytest.mark.usefixtures("long_first_wait")
    def test_poll_is_repeated_at_once_if_newer_message_arrived(self, stage: Stage) -> None:
        def waits_for_an_end(context: PollContext[Any]) -> Any:
            if len(seen) == 1:
                stage.send(pk, "newer")
            return Suspend()

        pk, seen = self.enter_recorder(stage, waits_for_an_end)
        stage.send(pk, "before")
        stage.run()

        assert seen == [["before"], ["before", "newer"]]

    @pytest.mark.usefixtures("long_first_wait")
    def test_later_message_wakes_actor_at_once(self, stage: Stage) -> None:
        pk, seen = self.enter_recorder(stage, lambda context: Suspend())
        stage.send(pk, 1)
        stage.run()
        stage.send(pk, 2)
        stage.run()

        assert seen == [[1], [1, 2]]

    def test_wait_doubles_while_messages_are_left(
        self, stage: Stage, options: Options, waits: list[float | None]
    ) -> None:
        options(POLL_INTERVAL=0.7)
        pk, seen = self.enter_recorder(stage, lambda context: Suspend())
        stage.send(pk, 1)
        for _ in range(5):
            testing.poll_once(pk)
            assert stage.status(pk) == Status.SUSPENDED
            stage.advance(0.7)

        assert len(seen) == 5
        assert waits == [0.1, 0.2, 0.4, 0.7, 0.7]

    def test_shorter_sleep_replaces_wait_for_left_messages(self, stage: Stage, waits: list[float | None]) -> None:
        pk, _ = self.enter_recorder(stage, lambda context: Sleep(timedelta(seconds=0.01)))
        stage.send(pk)
        testing.poll_once(pk)

        assert waits == [0.01]

    @pytest.mark.parametrize("wait", [Suspend(timedelta(minutes=10)), Sleep(timedelta(minutes=10))])
    def test_timeout_is_kept_while_actor_looks_at_left_messages(
        self, stage: Stage, options: Options, wait: Any
    ) -> None:
        options(POLL_INTERVAL=60.0)
        seen: list[bool] = []

        def waits_for_another(context: PollContext[Any]) -> Any:
            seen.append(context.timed_out)
            return wait

        pk, _ = self.enter_recorder(stage, waits_for_another)
        stage.send(pk, "not this one")
        for _ in range(2):  # the next timeout starts after the first
            stage.run()
            for _ in range(9):
                stage.advance(60)
                stage.run()
            assert len(seen) > 5
            assert True not in seen

            stage.advance(60)
            stage.run()
            assert seen[-1] is True
            seen.clear()

    @pytest.mark.usefixtures("long_first_wait")
    def test_newer_message_that_is_left_does_not_move_timeout(self, stage: Stage) -> None:
        seen: list[bool] = []

        def waits_for_another(context: PollContext[Any]) -> Any:
            seen.append(context.timed_out)
            return Suspend(timedelta(minutes=10))

        pk, _ = self.enter_recorder(stage, waits_for_another)
        stage.send(pk, 1)
        stage.run()
        stage.advance(540)
        stage.send(pk, 2)
        stage.run()
        stage.advance(61)
        stage.run()

        assert seen == [False, False, True]

    @pytest.mark.usefixtures("long_first_wait")
    def test_timeout_restarts_if_message_was_taken(self, stage: Stage) -> None:
        def takes_words(context: PollContext[Any]) -> Any:
            seen.append(context.timed_out)
            context.inbox.take(str)
            return Suspend(timedelta(minutes=10))

        seen: list[Any] = []
        pk = stage.enter(takes_words)
        stage.send(pk, 1)
        stage.run()
        stage.advance(540)
        stage.send(pk, "two")
        stage.run()
        stage.advance(540)
        stage.run()
        assert True not in seen
        stage.advance(61)
        stage.run()
        assert seen[-1] is True

    @pytest.mark.usefixtures("long_first_wait")
    def test_earlier_timeout_or_none_replaces_timeout(self, stage: Stage) -> None:
        waits = iter([Suspend(timedelta(hours=1)), Suspend(timedelta(minutes=5)), Suspend()])
        seen: list[bool] = []

        def poll(context: PollContext[Any]) -> Any:
            seen.append(context.timed_out)
            return next(waits)

        pk, _ = self.enter_recorder(stage, poll)
        for n in range(2):
            stage.send(pk, n)
            stage.run()
        timeout_at = stage.row(pk).timeout_at
        assert timeout_at is not None
        assert timeout_at < timezone.now() + timedelta(minutes=6)
        stage.send(pk, "and another")
        stage.run()

        assert stage.row(pk).timeout_at is None
        assert seen == [False] * 3

    @pytest.mark.usefixtures("long_first_wait")
    def test_retry_with_left_messages_keeps_timed_out(self, stage: Stage) -> None:
        seen: list[bool] = []

        def poll(context: PollContext[Any]) -> Any:
            seen.append(context.timed_out)
            if len(seen) == 2:
                raise ValueError("failed")
            return Suspend(timedelta(minutes=5)) if context.polls == 0 else Done()

        pk, _ = self.enter_recorder(stage, poll)
        stage.send(pk)
        stage.run()
        stage.advance(301)
        stage.run()
        stage.advance(11)
        stage.run()

        assert seen == [False, True, True]

    def test_messages_above_read_limit_repeat_poll(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = engine_for("default")
        monkeypatch.setattr(engine, "read_messages", partial(engine.read_messages, limit=2))

        def takes_all(context: PollContext[Any]) -> Any:
            context.inbox.take()
            return Suspend()

        pk, seen = self.enter_recorder(stage, takes_all)
        for n in range(5):
            stage.send(pk, n)
        stage.run()

        assert seen == [[0, 1], [2, 3], [4]]

    @pytest.mark.parametrize("count", [4, 40])
    def test_awaited_message_behind_read_limit_is_found(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        engine = engine_for("default")
        monkeypatch.setattr(engine, "read_messages", partial(engine.read_messages, limit=4))

        def takes_what_it_waits_for(context: PollContext[Any]) -> Any:
            found = context.inbox.take(str)
            return Done(bodies(found)) if found else Suspend()

        pk, seen = self.enter_recorder(stage, takes_what_it_waits_for)
        stage.run()
        for n in range(count):
            stage.send(pk, n)
        stage.send(pk, "go")
        stage.run()

        assert stage.result(pk) == ["go"]
        assert len(seen) <= 6

    def test_left_messages_above_read_limit_cause_no_hot_loop(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, waits: list[float | None]
    ) -> None:
        engine = engine_for("default")
        monkeypatch.setattr(engine, "read_messages", partial(engine.read_messages, limit=4))
        pk, seen = self.enter_recorder(stage, lambda context: Suspend())
        for n in range(9):
            stage.send(pk, n)
        stage.run()

        assert [len(messages) for messages in seen] == [4, 8, 9]
        assert stage.status(pk) == Status.SUSPENDED
        assert waits == [0.1, 0.2, 0.4]


class TestTyped:
    def test_body_is_decoded_as_message_type(self, stage: Stage) -> None:
        result = actors.Typed.enqueue()
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

    @pytest.mark.parametrize("body", [{"type": "sell"}, {"type": "publish", "title": 7}, "publish", None])
    def test_undecodable_body_fails_poll_and_names_message(self, stage: Stage, body: Any) -> None:
        pk = UUID(actors.Typed.enqueue().id)
        stage.run()
        number, sender = stage.send(pk, body, sender=pk), pk
        stage.run()

        assert stage.status(pk) == Status.SCHEDULED
        assert stage.error(pk).startswith(
            f"UndecodableMessage: Message {number} from {sender} is not what Typed.Message allows: "
        )
        assert stage.unread(pk) == [body]
        stage.advance(10)
        stage.run()
        assert stage.status(pk) == Status.FAILED
        assert stage.row(pk).attempts == 2

    def test_undecodable_body_is_read_after_new_code_is_deployed(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pk = UUID(actors.Typed.enqueue().id)
        stage.send(pk, {"type": "sell"})
        stage.run()
        monkeypatch.setattr(actors.Typed, "Message", dict)
        monkeypatch.setattr(actors.Typed, "poll", lambda actor, context: Done(context.inbox.popleft().body))
        stage.advance(10)
        stage.run()

        assert stage.result(pk) == {"type": "sell"}

    def test_message_type_that_raises_fails_poll_and_names_message(self, stage: Stage) -> None:
        pk = UUID(actors.Checked.enqueue().id)
        stage.run()
        number = stage.send(pk, {"article": "mug"})
        stage.run()

        assert stage.status(pk) == Status.SCHEDULED
        assert stage.error(pk) == (
            f"UndecodableMessage: Message {number} from outside is not what Checked.Message allows: KeyError: 'mug'"
        )
        assert stage.row(pk).attempts == 1
        assert stage.unread(pk) == [{"article": "mug"}]
