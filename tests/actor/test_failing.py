"""Retries, final failure, cancel and requeue of actors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

import jobqueue
from jobqueue import Actor, Done, GiveUp, Kind, PollContext, Retry, Sleep, Spawn, Suspend, testing
from jobqueue.models import InboxMessage
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestRetries:
    def test_poll_is_retried_with_backoff_then_fails(self, stage: Stage, waits: list[float | None]) -> None:
        def poll(context: PollContext[Any]) -> Any:
            raise Retry("1", after=timedelta(minutes=5)) if context.attempt == 1 else ValueError(context.attempt)

        pk = stage.enter(poll)
        for seconds in (300, 20):
            testing.poll_once(pk)
            assert stage.run() == []
            stage.advance(seconds)
        testing.poll_once(pk)

        row = stage.row(pk)
        assert waits == [300, 20, None]
        assert (row.status, row.attempts, row.polls) == (Status.FAILED, 3, 0)
        assert [error["message"] for error in row.errors] == ["1", "2", "3"]

    def test_successful_poll_resets_attempts_and_changes_key(self, stage: Stage, actor: type[Actor[Any]]) -> None:
        polls: list[Any] = []

        def poll(context: PollContext[Any]) -> Any:
            polls.append((context.attempt, context.idempotency_key))
            if len(polls) % 3:
                raise ValueError("failed")
            return Done() if len(polls) == 9 else None

        pk = stage.enter(poll, actor=actor)
        while stage.status(pk) != Status.SUCCESSFUL:
            stage.run()
            stage.advance(60)

        assert polls == [(attempt, f"{pk}:{n}") for n in range(3) for attempt in (1, 2, 3)]
        row = stage.row(pk)
        assert (row.polls, row.attempts, len(row.errors)) == (3, 2, 6)  # of the last poll

    @pytest.mark.parametrize("error", [GiveUp("hopeless"), KeyError("listed in give_up_on")])
    def test_give_up_and_give_up_on_fail_actor_at_once(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def poll(actor: Any, context: PollContext[Any], first: int) -> Any:
            raise error

        monkeypatch.setattr(actors.Declared, "poll", poll)
        pk = UUID(actors.Declared.enqueue(1).id)
        stage.run()

        assert stage.status(pk) == Status.FAILED
        assert stage.error(pk) == f"{type(error).__name__}: {error}"


class TestCancel:
    ENDS = [
        (Suspend(), Status.CANCELLED),
        (Sleep(timedelta(hours=1)), Status.CANCELLED),
        (None, Status.CANCELLED),
        (Done("after all"), Status.SUCCESSFUL),
    ]

    @pytest.mark.parametrize(("returned", "status"), ENDS)
    @pytest.mark.parametrize("as_function", [False, True])
    def test_running_actor_is_cancelled_after_poll(
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


class TestRequeue:
    @pytest.mark.parametrize("order", ["child first", "parent first", "both"])
    def test_failed_chain_goes_on_after_a_requeue(self, stage: Stage, order: str) -> None:
        """The parent gave up because its child had failed. The cause is repaired, and both are requeued."""
        broken = [True]

        def link(context: PollContext[Any]) -> Any:
            if broken:
                raise GiveUp("broken")
            return Done("linked")

        def chain(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                return stage.child(link), Suspend()
            for message in context.inbox.take():
                if message.kind is not Kind.CHILD_SUCCESSFUL:
                    raise GiveUp("a link failed")
                return Done(message.body)
            return Suspend()

        pk = stage.enter(chain)
        stage.run()
        (child,) = stage.children(pk)
        assert (stage.status(pk), stage.status(child.id)) == (Status.FAILED, Status.FAILED)

        broken.clear()
        steps = {"child first": [[child.id], [pk]], "parent first": [[pk], [child.id, pk]], "both": [[pk, child.id]]}
        for ids in steps[order]:
            jobqueue.requeue(ids)
            stage.run()

        assert stage.status(pk) == Status.SUCCESSFUL
        assert stage.result(pk) == "linked"

    def test_patient_parent_hears_of_the_success_of_a_requeued_child(self, stage: Stage) -> None:
        broken, received = [True], list[Kind]()

        def link(context: PollContext[Any]) -> Any:
            if broken:
                raise GiveUp("broken")
            return Done("linked")

        def chain(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                return stage.child(link), Suspend()
            received.extend(message.kind for message in context.inbox.take())
            return Done() if Kind.CHILD_SUCCESSFUL in received else Suspend()

        pk = stage.enter(chain)
        stage.run()
        assert (stage.status(pk), received) == (Status.SUSPENDED, [Kind.CHILD_FAILED])

        broken.clear()
        jobqueue.requeue(stage.children(pk)[0].id)
        stage.run()

        assert received == [Kind.CHILD_FAILED, Kind.CHILD_SUCCESSFUL]
        assert stage.status(pk) == Status.SUCCESSFUL

    def test_inbox_has_the_last_end_of_a_child_and_consumes_the_others(self, stage: Stage) -> None:
        """The first end stayed, because the parent was running when its child was requeued."""
        seen: list[Any] = []
        child = stage.child(lambda context: Done("at last"))

        def poll(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                return child, Suspend()
            seen.append([(message.kind, message.body) for message in context.inbox])
            return Suspend()

        pk = stage.enter(poll)
        testing.poll_once(pk)
        first = InboxMessage(task_id=pk, sender_id=child.id, child_status="FAILED", sent_at=timezone.now())
        first.save(using=stage.database)
        testing.poll_once(child.id)
        testing.poll_once(pk)

        assert seen == [[(Kind.CHILD_SUCCESSFUL, "at last")]]
        assert stage.unread(pk) == ["at last"]

    def test_requeue_keeps_state_and_inbox(self, stage: Stage) -> None:
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
