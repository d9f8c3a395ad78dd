"""Parents and children."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

import jobqueue
from jobqueue import Done, Kind, PollContext, Send, Spawn, Suspend, Yield, testing
from jobqueue.compat import TaskResultStatus, task_enqueued
from jobqueue.models import InboxMessage, Task
from jobqueue.records import Status
from tests.actor import actors
from tests.actor.stage import Stage
from tests.actors import Fibonacci

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def parent_of(*children: Spawn, mail: list[Any]) -> Any:
    """Make a parent that spawns these, and ends when each has ended."""

    def poll(context: PollContext[Any]) -> Any:
        if context.polls == 0:
            return *children, Suspend()
        mail.extend(context.inbox.take())
        return Done() if sum(m.kind is not Kind.MESSAGE for m in mail) == len(children) else Suspend()

    return poll


def fail(context: PollContext[Any]) -> Any:
    raise ValueError("as asked")


class TestEnds:
    def test_spawned_child_has_the_id_it_was_given(self, stage: Stage) -> None:
        child = Spawn(actors.double.using(priority=5, queue_name="other"), 21)
        pk = stage.enter(parent_of(child, mail=[]))
        testing.poll_once(pk)

        (row,) = stage.children(pk)
        assert (row.id, row.parent_id, row.priority, row.queue_name) == (child.id, pk, 5, "other")
        assert (row.args, row.status) == ([21], Status.READY)

    def test_result_of_a_function_task(self, stage: Stage) -> None:
        mail: list[Any] = []
        child = Spawn(actors.double, 21)
        pk = stage.enter(parent_of(child, mail=mail))
        stage.run()

        assert [(m.kind, m.body, m.sender) for m in mail] == [(Kind.CHILD_SUCCESSFUL, 42, child.id)]
        assert stage.status(pk) == Status.SUCCESSFUL

    def test_result_of_an_actor(self, stage: Stage) -> None:
        mail: list[Any] = []
        stage.enter(parent_of(stage.child(lambda context: Done({"a": 1})), mail=mail))
        stage.run()

        assert [(m.kind, m.body) for m in mail] == [(Kind.CHILD_SUCCESSFUL, {"a": 1})]

    @pytest.mark.parametrize("make", [lambda stage: Spawn(actors.fail), lambda stage: stage.child(fail)])
    def test_final_failure_is_told_once(self, stage: Stage, make: Any) -> None:
        mail: list[Any] = []
        pk = stage.enter(parent_of(make(stage), mail=mail))
        stage.run()
        assert mail == []
        for _ in range(3):
            stage.advance(60)
            stage.run()

        (message,) = mail
        assert message.kind is Kind.CHILD_FAILED
        assert message.body["exception_class_path"] == "builtins.ValueError"
        assert message.body["message"] == "as asked"
        assert "raise ValueError" in message.body["traceback"]
        assert stage.status(pk) == Status.SUCCESSFUL

    def test_cancellation_is_told(self, stage: Stage) -> None:
        mail: list[Any] = []
        child = stage.child(lambda context: Suspend())
        pk = stage.enter(parent_of(child, mail=mail))
        stage.run()
        jobqueue.cancel(child.id)
        stage.run()

        assert [(m.kind, m.body, m.sender) for m in mail] == [(Kind.CHILD_CANCELLED, None, child.id)]
        assert stage.status(pk) == Status.SUCCESSFUL

    def test_atomic_function_task_tells_too(self, stage: Stage) -> None:
        mail: list[Any] = []
        stage.enter(parent_of(Spawn(actors.make_group, "by a child"), mail=mail))
        stage.run()

        assert [m.body for m in mail] == ["by a child"]

    def test_many_ends_are_read_in_few_polls(self, stage: Stage) -> None:
        mail: list[Any] = []
        pk = stage.enter(parent_of(*[Spawn(actors.double, n) for n in range(30)], mail=mail))
        stage.run()

        assert sorted(m.body for m in mail) == [2 * n for n in range(30)]
        assert stage.status(pk) == Status.SUCCESSFUL

    def test_requeued_child_does_not_report_twice(self, stage: Stage) -> None:
        mail: list[Any] = []
        child = Spawn(actors.fail.using(max_attempts=1))
        sleeper = stage.child(lambda context: Suspend())
        stage.enter(parent_of(child, sleeper, mail=mail))
        stage.run()
        assert [m.kind for m in mail] == [Kind.CHILD_FAILED]

        jobqueue.requeue(child.id)
        stage.run()
        assert stage.status(child.id) == Status.FAILED
        assert len(mail) == 1


class TestYield:
    def test_messages_to_the_parent_come_in_order_before_the_end(self, stage: Stage) -> None:
        def count_up(context: PollContext[Any]) -> Any:
            n = context.polls
            return (Yield(n), Yield(-n), None)[:2] if n < 2 else (Yield("last"), Done("end"))

        mail: list[Any] = []
        child = stage.child(count_up)
        stage.enter(parent_of(child, mail=mail))
        stage.run()

        assert [m.body for m in mail] == [0, 0, 1, -1, "last", "end"]
        assert {m.sender for m in mail} == {child.id}

    def test_to_a_parent_that_has_ended_is_dropped_and_counted(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        child = stage.child(lambda context: (Yield("anybody there?"), Suspend()) if context.inbox.take() else Suspend())
        pk = stage.enter(lambda context: (child, Done()) if not context.polls else None)
        stage.run()
        stage.send(child.id)
        caplog.set_level(logging.INFO, "jobqueue.engine.portable.commit")
        stage.run()

        assert stage.status(child.id) == Status.SUSPENDED
        assert stage.row(child.id).polls == 2
        assert stage.unread(pk) == []
        assert "message.dropped count=1" in caplog.text


class TestOrphans:
    def family(self, stage: Stage, last: Done) -> tuple[UUID, Spawn, Spawn]:
        grandchild = stage.child(lambda context: Done("late") if context.inbox.take() else Suspend())
        child = stage.child(lambda context: (grandchild, Suspend()) if not context.polls else Suspend())
        pk = stage.enter(lambda context: last if context.inbox.take() else (child, Suspend()))
        stage.run()
        stage.send(pk)
        stage.run()
        assert stage.status(pk) == Status.SUCCESSFUL
        return pk, child, grandchild

    def test_living_children_of_a_parent_that_is_done_live_on(self, stage: Stage) -> None:
        pk, child, grandchild = self.family(stage, Done())

        assert stage.status(child.id) == stage.status(grandchild.id) == Status.SUSPENDED
        assert [row.id for row in stage.children(pk)] == [child.id]
        stage.send(grandchild.id)
        stage.run()
        assert stage.result(grandchild.id) == "late"

    def test_their_end_is_told_to_nobody(self, stage: Stage) -> None:
        pk, child, _ = self.family(stage, Done())
        jobqueue.cancel(child.id)
        stage.run()

        assert stage.status(child.id) == Status.CANCELLED
        assert stage.unread(pk) == []
        assert stage.row(child.id).parent_notified_at is not None

    def test_done_may_take_them_along(self, stage: Stage) -> None:
        _, child, grandchild = self.family(stage, Done(cancel_children=True))

        assert stage.status(child.id) == stage.status(grandchild.id) == Status.CANCELLED

    def test_children_that_have_ended_stay_as_they_are(self, stage: Stage) -> None:
        mail: list[Any] = []
        child = Spawn(actors.double, 1)

        def poll(context: PollContext[Any]) -> Any:
            mail.extend(context.inbox.take())
            return Done(cancel_children=True) if mail else (child, Suspend()) if not context.polls else Suspend()

        stage.enter(poll)
        stage.run()

        assert stage.result(child.id) == 2


class TestEnqueued:
    @pytest.fixture
    def told(self) -> Iterator[list[Any]]:
        results: list[Any] = []

        def receiver(task_result: Any, **_: Any) -> None:
            results.append(task_result)

        task_enqueued.connect(receiver)
        yield results
        task_enqueued.disconnect(receiver)

    def test_signal_is_sent_for_each_child(self, stage: Stage, told: list[Any]) -> None:
        children = [Spawn(actors.double.using(priority=5, queue_name="other"), 21), Spawn(Fibonacci, 1)]
        pk = stage.enter(parent_of(*children, mail=[]))
        told.clear()
        testing.poll_once(pk)

        assert [result.id for result in told] == [str(child.id) for child in children]
        double, fibonacci = told
        assert (double.task.func, double.args, double.status) == (actors.double.func, [21], TaskResultStatus.READY)
        assert (double.task.priority, double.task.queue_name, fibonacci.task.name) == (5, "other", "Fibonacci")
        stage.run()
        double.refresh()
        assert double.return_value == 42

    def test_none_for_children_that_were_not_born(self, stage: Stage, told: list[Any]) -> None:
        stage.enter(lambda context: Suspend(), key="k")
        pk = stage.enter(parent_of(Spawn(actors.double, 1), stage.child(fail, key="k"), mail=[]))
        told.clear()
        testing.poll_once(pk)

        assert told == []


class TestBackends:
    @pytest.mark.parametrize(("actor", "result"), [(Fibonacci.using(backend="sqlite"), 3), (actors.Elsewhere, 8)])
    def test_children_live_in_their_parents_backend(self, stage: Stage, actor: Any, result: int) -> None:
        pk = actor.enqueue(4).id
        stage.run(backend="sqlite")

        rows = Task.objects.using("sqlite")
        row = rows.get(pk=pk)
        assert (row.status, row.return_value) == (Status.SUCCESSFUL, result)
        assert set(rows.filter(parent_id=pk).values_list("backend", flat=True)) == {"sqlite"}

    @pytest.mark.parametrize("child", [actors.Elsewhere, actors.double.using(backend="sqlite")])
    def test_child_that_names_another_backend_fails_the_poll(self, stage: Stage, child: Any) -> None:
        pk = stage.enter(parent_of(Spawn(child, 1), mail=[]))
        stage.run()

        assert stage.error(pk).startswith("InvalidActions: A child lives in its parent's backend 'default'")
        assert stage.children(pk) == []


class TestKeys:
    def test_child_may_have_a_key(self, stage: Stage) -> None:
        child = stage.child(lambda context: Done(context.inbox.popleft().body) if context.inbox else Suspend(), key="k")
        mail: list[Any] = []
        stage.enter(parent_of(child, mail=mail))
        stage.run()
        jobqueue.send("k", "hello")
        stage.run()

        assert [m.body for m in mail] == ["hello"]

    def test_its_key_is_known_to_what_the_poll_sends_after_it(self, stage: Stage) -> None:
        def child(context: PollContext[Any]) -> Any:
            return Done([message.body for message in context.inbox.take()])

        def poll(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                return stage.child(child, key="kid"), Send("kid", "first"), Send("kid", "second"), Suspend()
            return Done(context.inbox.popleft().body)

        pk = stage.enter(poll)
        stage.run()

        assert stage.result(pk) == ["first", "second"]

    def test_its_key_is_nobodys_before_it(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: (Send("kid", 1), stage.child(lambda context: Done(), key="kid"), Suspend()))
        stage.run()

        assert stage.error(pk).startswith("TaskNotFound: ")

    def test_spawn_kept_in_a_module_fails_the_poll_that_returns_it_again(self, stage: Stage) -> None:
        child = Spawn(actors.double, 4)
        first, second = (stage.enter(lambda context: (child, Suspend())) for _ in range(2))
        stage.run()

        assert len(stage.children(first)) == 1
        assert stage.status(second) == Status.SCHEDULED
        assert stage.error(second).startswith("InvalidActions: A Spawn that poll() returned was spawned before.")
        assert stage.row(second).attempts == 1

    def test_child_whose_key_is_taken_fails_the_poll(self, stage: Stage) -> None:
        holder = stage.enter(lambda context: Suspend(), key="k")
        pk = stage.enter(parent_of(Spawn(actors.double, 1), stage.child(fail, key="k"), mail=[]))
        stage.run()

        assert stage.error(pk).startswith("DuplicateKey: No child")
        assert str(holder) in stage.error(pk)
        assert stage.children(pk) == []
        assert stage.status(pk) == Status.SCHEDULED


def test_messages_to_a_task_that_ends_are_kept_and_can_be_counted(stage: Stage) -> None:
    def poll(context: PollContext[Any]) -> Any:
        if context.inbox.take():
            stage.send(pk, "too late")
            return Done()
        return Suspend()

    pk = stage.enter(poll)
    stage.send(pk, "now")
    stage.run()

    assert stage.status(pk) == Status.SUCCESSFUL
    assert stage.unread(pk) == ["too late"]
    undelivered = InboxMessage.objects.using(stage.database).filter(
        consumed_at__isnull=True, task__finished_at__isnull=False
    )
    assert undelivered.count() == 1
