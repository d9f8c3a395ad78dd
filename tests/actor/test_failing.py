"""Retries, final failure, cancel and requeue of actors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import jobqueue
from jobqueue import Done, GiveUp, Kind, PollContext, Retry, Sleep, Spawn, Suspend, testing
from jobqueue.records import Status
from tests.actor import actors
from tests.actor.stage import AsyncPuppet, Puppet, Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestRetries:
    def test_backoff_and_the_end(self, stage: Stage, waits: list[float | None]) -> None:
        def poll(context: PollContext[Any]) -> Any:
            raise ValueError(context.attempt)

        pk = stage.enter(poll)
        for seconds in (10, 20):
            testing.poll_once(pk)
            assert stage.run() == []
            stage.advance(seconds)
        testing.poll_once(pk)

        row = stage.row(pk)
        assert waits == [10, 20, None]
        assert (row.status, row.attempts, row.polls) == (Status.FAILED, 3, 0)
        assert [error["message"] for error in row.errors] == ["1", "2", "3"]

    def test_good_poll_gives_all_attempts_back(self, stage: Stage) -> None:
        attempts: list[int] = []

        def poll(context: PollContext[Any]) -> Any:
            attempts.append(context.attempt)
            if len(attempts) % 3:
                raise ValueError("as asked")
            return Done() if len(attempts) == 9 else None

        pk = stage.enter(poll)
        while stage.status(pk) != Status.SUCCESSFUL:
            stage.run()
            stage.advance(60)

        assert attempts == [1, 2, 3] * 3
        row = stage.row(pk)
        assert (row.polls, row.attempts, len(row.errors)) == (3, 0, 6)

    @pytest.mark.parametrize("actor", [Puppet, AsyncPuppet])
    def test_idempotency_key_is_the_same_for_every_try_of_one_poll(self, stage: Stage, actor: Any) -> None:
        keys: list[str] = []

        def poll(context: PollContext[Any]) -> Any:
            keys.append(context.idempotency_key)
            if len(keys) % 2:
                raise ValueError("as asked")
            return Done() if len(keys) == 4 else None

        async def apoll(context: PollContext[Any]) -> Any:
            return poll(context)

        pk = stage.enter(apoll if actor is AsyncPuppet else poll, actor=actor)
        for _ in range(3):
            stage.run()
            stage.advance(60)

        assert keys == [f"{pk}:0"] * 2 + [f"{pk}:1"] * 2

    def test_give_up_ends_at_once(self, stage: Stage) -> None:
        def poll(context: PollContext[Any]) -> Any:
            raise GiveUp("hopeless")

        pk = stage.enter(poll)
        stage.run()

        assert stage.status(pk) == Status.FAILED
        assert stage.error(pk) == "GiveUp: hopeless"

    def test_retry_says_when(self, stage: Stage, waits: list[float | None]) -> None:
        def poll(context: PollContext[Any]) -> Any:
            raise Retry(after=timedelta(minutes=5))

        pk = stage.enter(poll)
        stage.run()

        assert stage.status(pk) == Status.SCHEDULED
        assert waits == [300]

    def test_give_up_on(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        def poll(actor: Any, context: PollContext[Any], first: int) -> Any:
            raise KeyError(first)

        monkeypatch.setattr(actors.Declared, "poll", poll)
        pk = UUID(actors.Declared.enqueue(1).id)
        stage.run()

        assert stage.status(pk) == Status.FAILED

    def test_actor_whose_code_is_gone_is_handed_back(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: Done())
        stage.change(pk, task_type="tests.no_more")
        stage.run()

        assert stage.status(pk) == Status.SCHEDULED
        assert "UnknownTask" in stage.error(pk)
        assert stage.row(pk).attempts == 0


class TestCancel:
    @pytest.mark.parametrize("returned", [Suspend(), Sleep(timedelta(hours=1))])
    def test_waiting_actor_is_cancelled_at_once(self, stage: Stage, returned: Any) -> None:
        pk = stage.enter(lambda context: returned)
        stage.run()
        report = jobqueue.cancel(pk)

        row = stage.row(pk)
        assert (report.cancelled, report.requested, report.skipped) == (1, 0, 0)
        assert (row.status, row.wake_at) == (Status.CANCELLED, None)
        assert row.finished_at is not None
        stage.advance(3600)
        assert stage.run() == []

    def test_queued_actor_is_cancelled_at_once(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: Done())
        jobqueue.cancel(pk)

        assert stage.run() == []
        assert stage.status(pk) == Status.CANCELLED

    ENDS = [
        (Suspend(), Status.CANCELLED),
        (Sleep(timedelta(hours=1)), Status.CANCELLED),
        (None, Status.CANCELLED),
        (Done("after all"), Status.SUCCESSFUL),
    ]

    @pytest.mark.parametrize(("returned", "status"), ENDS)
    @pytest.mark.parametrize("as_function", [False, True])
    def test_running_actor_is_cancelled_after_its_poll(
        self, stage: Stage, returned: Any, status: Status, as_function: bool
    ) -> None:
        other = stage.enter(lambda context: Suspend())
        stage.run()

        def poll(context: PollContext[Any]) -> Any:
            report = jobqueue.cancel(pk)
            assert (report.cancelled, report.requested) == (0, 1)
            context.state["poll"] = "through"
            actions = [Spawn(actors.double, 1), jobqueue.Send(other, "sent"), *([returned] if returned else [])]
            return (lambda: actions) if as_function else actions

        pk = stage.enter(poll)
        testing.poll_once(pk)

        assert stage.status(pk) == status
        assert stage.row(pk).inner_state == {"poll": "through"}
        assert stage.unread(other) == ["sent"]
        assert len(stage.children(pk)) == (1 if status is Status.SUCCESSFUL else 0)

    def test_failed_poll_of_a_cancelled_actor_is_not_tried_again(self, stage: Stage) -> None:
        def poll(context: PollContext[Any]) -> Any:
            jobqueue.cancel(pk)
            raise ValueError("as asked")

        pk = stage.enter(poll)
        testing.poll_once(pk)

        assert stage.status(pk) == Status.CANCELLED

    def test_tree_takes_the_children_along(self, stage: Stage) -> None:
        grandchildren = [stage.child(lambda context: Suspend()) for _ in range(2)]
        children = [
            stage.child(lambda context: (*grandchildren, Suspend()) if not context.polls else Suspend()),
            Spawn(actors.double, 1),
        ]
        pk = stage.enter(lambda context: (*children, Suspend()) if not context.polls else Suspend())
        stage.run()
        report = jobqueue.cancel(pk, tree=True)

        assert report.cancelled == 4
        assert stage.result(children[1].id) == 2
        for one in (pk, children[0].id, *(spawn.id for spawn in grandchildren)):
            assert stage.status(one) == Status.CANCELLED
        assert stage.run() == []

    def test_without_tree_children_live_on(self, stage: Stage) -> None:
        child = stage.child(lambda context: Suspend())
        pk = stage.enter(lambda context: (child, Suspend()))
        stage.run()
        jobqueue.cancel(pk)

        assert stage.status(child.id) == Status.SUSPENDED


class TestRequeue:
    def test_parent_reads_the_ends_that_it_missed(self, stage: Stage) -> None:
        child = stage.child(lambda context: Done("the end") if context.inbox.take() else Suspend())

        def poll(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                return child, Suspend()
            if context.inbox.take(Kind.MESSAGE) and not stage.row(pk).errors:
                raise GiveUp("for now")
            ends = context.inbox.take(Kind.CHILD_SUCCESSFUL)
            return Done([message.body for message in ends]) if ends else Suspend()

        pk = stage.enter(poll)
        stage.run()
        stage.send(pk)
        stage.run()
        assert stage.status(pk) == Status.FAILED
        stage.send(child.id)
        stage.run()
        assert stage.result(child.id) == "the end"
        jobqueue.requeue(pk)
        stage.run()

        assert stage.result(pk) == ["the end"]

    def test_state_and_inbox_are_kept(self, stage: Stage) -> None:
        seen: list[Any] = []

        def poll(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                context.state["memory"] = 1
                return Suspend()
            if len(seen) == 0:
                seen.append(None)
                raise GiveUp("for now")
            return Done([context.attempt, context.state, [m.body for m in context.inbox.take()]])

        pk = stage.enter(poll)
        stage.run()
        stage.send(pk, "unread")
        stage.run()
        assert stage.status(pk) == Status.FAILED

        assert jobqueue.requeue(pk).requeued == 1
        stage.run()
        assert stage.result(pk) == [1, {"memory": 1}, ["unread"]]

    def test_cancelled_actor_lives_again(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: Done(context.polls) if context.polls else Suspend())
        stage.run()
        jobqueue.cancel(pk)
        jobqueue.requeue(pk)
        stage.run()

        assert stage.result(pk) == 1
