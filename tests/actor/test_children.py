"""Children of actors: results, yields, cancellation, backends and keys."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

import jobqueue
from jobqueue import Debounce, Done, Kind, PollContext, Send, Spawn, Suspend, Yield, testing
from jobqueue.conf.compat import TaskResultStatus, task_enqueued
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage
from tests.actors import Fibonacci

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def parent_of(*children: Spawn, received: list[Any]) -> Any:
    """Return a poll that spawns these children and ends after them."""

    def poll(context: PollContext[Any]) -> Any:
        if context.polls == 0:
            return *children, Suspend()
        received.extend(context.inbox.take())
        return Done() if sum(message.kind is not Kind.MESSAGE for message in received) == len(children) else Suspend()

    return poll


def fail(context: PollContext[Any]) -> Any:
    raise ValueError("failed")


class TestEndOfChild:
    def test_spawned_child_has_id_and_options_of_spawn(self, stage: Stage) -> None:
        child = Spawn(actors.double.using(priority=5, queue_name="other"), 21)
        pk = stage.enter(parent_of(child, received=[]))
        testing.poll_once(pk)

        (row,) = stage.children(pk)
        assert (row.id, row.parent_id, row.priority, row.queue_name) == (child.id, pk, 5, "other")
        assert (row.args, row.status) == ([21], Status.READY)

    @pytest.mark.parametrize(
        ("make", "result"),
        [
            (lambda stage: Spawn(actors.double, 21), 42),
            (lambda stage: Spawn(actors.make_group, "by a child"), "by a child"),
            (lambda stage: stage.child(lambda context: Done({"a": 1})), {"a": 1}),
        ],
        ids=["function", "atomic function", "actor"],
    )
    def test_parent_receives_result_of_child(self, stage: Stage, make: Any, result: Any) -> None:
        received: list[Any] = []
        child = make(stage)
        pk = stage.enter(parent_of(child, received=received))
        stage.run()

        assert [(message.kind, message.body, message.sender) for message in received] == [
            (Kind.CHILD_SUCCESSFUL, result, child.id)
        ]
        assert stage.status(pk) == Status.SUCCESSFUL

    @pytest.mark.parametrize("make", [lambda stage: Spawn(actors.fail), lambda stage: stage.child(fail)])
    def test_parent_receives_final_failure_and_cancellation_once(self, stage: Stage, make: Any) -> None:
        received: list[Any] = []
        waiting = stage.child(lambda context: Suspend())
        pk = stage.enter(parent_of(make(stage), waiting, received=received))
        stage.run()
        assert received == []
        for _ in range(3):
            stage.advance(60)
            stage.run()
        jobqueue.cancel(waiting.id)
        stage.run()

        message, cancelled = received
        assert (cancelled.kind, cancelled.body, cancelled.sender) == (Kind.CHILD_CANCELLED, None, waiting.id)
        assert message.kind is Kind.CHILD_FAILED
        assert message.body["exception_class_path"] == "builtins.ValueError"
        assert message.body["message"] == "failed"
        assert "raise ValueError" in message.body["traceback"]
        assert stage.status(pk) == Status.SUCCESSFUL


class TestYield:
    def test_yields_arrive_in_order_before_end_of_child(self, stage: Stage) -> None:
        def count_up(context: PollContext[Any]) -> Any:
            n = context.polls
            return (Yield(n), Yield(-n), None)[:2] if n < 2 else (Yield("last"), Done("end"))

        received: list[Any] = []
        child = stage.child(count_up)
        stage.enter(parent_of(child, received=received))
        stage.run()

        assert [message.body for message in received] == [0, 0, 1, -1, "last", "end"]
        assert {message.sender for message in received} == {child.id}

    def test_yield_to_finished_parent_is_dropped_and_counted(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        child = stage.child(lambda context: (Yield("anybody there?"), Suspend()) if context.inbox.take() else Suspend())
        pk = stage.enter(lambda context: (child, Done()) if not context.polls else None)
        stage.run()
        stage.send(child.id)
        caplog.set_level(logging.INFO, "jobqueue.engine.commit")
        stage.run()

        assert stage.status(child.id) == Status.SUSPENDED
        assert stage.row(child.id).polls == 2
        assert stage.unread(pk) == []
        assert "message.dropped count=1" in caplog.text


class TestEndOfParent:
    def family(self, stage: Stage, last: Done) -> tuple[UUID, Spawn, Spawn]:
        grandchild = stage.child(lambda context: Done("late") if context.inbox.take() else Suspend())
        child = stage.child(lambda context: (grandchild, Suspend()) if not context.polls else Suspend())
        pk = stage.enter(lambda context: last if context.inbox.take() else (child, Suspend()))
        stage.run()
        stage.send(pk)
        stage.run()
        assert stage.status(pk) == Status.SUCCESSFUL
        return pk, child, grandchild

    def test_children_outlive_their_parent(self, stage: Stage) -> None:
        pk, child, grandchild = self.family(stage, Done())

        assert stage.status(child.id) == stage.status(grandchild.id) == Status.SUSPENDED
        assert [row.id for row in stage.children(pk)] == [child.id]
        jobqueue.cancel(child.id)  # without tree=True
        stage.send(grandchild.id)
        stage.run()
        assert stage.result(grandchild.id) == "late"

    def test_done_with_cancel_children_cancels_descendants(self, stage: Stage) -> None:
        _, child, grandchild = self.family(stage, Done(cancel_children=True))

        assert stage.status(child.id) == stage.status(grandchild.id) == Status.CANCELLED


class TestEnqueued:
    @pytest.fixture
    def enqueued(self) -> Iterator[list[Any]]:
        results: list[Any] = []

        def receiver(task_result: Any, **_: Any) -> None:
            results.append(task_result)

        task_enqueued.connect(receiver)
        yield results
        task_enqueued.disconnect(receiver)

    def test_task_enqueued_is_sent_for_each_child(self, stage: Stage, enqueued: list[Any]) -> None:
        children = [Spawn(actors.double.using(priority=5, queue_name="other"), 21), Spawn(Fibonacci, 1)]
        pk = stage.enter(parent_of(*children, received=[]))
        enqueued.clear()
        testing.poll_once(pk)

        assert [result.id for result in enqueued] == [str(child.id) for child in children]
        double, fibonacci = enqueued
        assert (double.task.func, double.args, double.status) == (actors.double.func, [21], TaskResultStatus.READY)
        assert (double.task.priority, double.task.queue_name, fibonacci.task.name) == (5, "other", "Fibonacci")
        stage.run()
        double.refresh()
        assert double.return_value == 42

    def test_child_with_taken_key_fails_poll_and_is_not_announced(self, stage: Stage, enqueued: list[Any]) -> None:
        holder = stage.enter(lambda context: Suspend(), key="k")
        pk = stage.enter(parent_of(Spawn(actors.double, 1), stage.child(fail, key="k"), received=[]))
        enqueued.clear()
        testing.poll_once(pk)

        assert enqueued == []
        assert stage.error(pk).startswith("DuplicateKey: No child")
        assert str(holder) in stage.error(pk)
        assert stage.children(pk) == []
        assert stage.status(pk) == Status.SCHEDULED

    @pytest.mark.parametrize("unique", [{"on_conflict": "replace"}, {"unique_for": 60}, {"debounce": Debounce(1)}])
    def test_child_that_could_replace_another_task_fails_poll(self, stage: Stage, unique: Any) -> None:
        pk = stage.enter(parent_of(Spawn(actors.double.using(key="k", **unique), 1), received=[]))
        testing.poll_once(pk)

        assert "a child takes no on_conflict" in stage.error(pk)
        assert stage.children(pk) == []


class TestBackends:
    @pytest.mark.parametrize(("actor", "result"), [(Fibonacci.using(backend="sqlite"), 3), (actors.Elsewhere, 8)])
    def test_children_use_backend_of_parent(self, stage: Stage, actor: Any, result: int) -> None:
        pk = actor.enqueue(4).id
        stage.run(backend="sqlite")

        rows = Task.objects.using("sqlite")
        row = rows.get(pk=pk)
        assert (row.status, row.return_value) == (Status.SUCCESSFUL, result)
        assert set(rows.filter(parent_id=pk).values_list("backend", flat=True)) == {"sqlite"}

    @pytest.mark.parametrize("child", [actors.Elsewhere, actors.double.using(backend="sqlite")])
    def test_child_of_other_backend_fails_poll(self, stage: Stage, child: Any) -> None:
        pk = stage.enter(parent_of(Spawn(child, 1), received=[]))
        stage.run()

        assert stage.error(pk).startswith("InvalidActions: A child lives in its parent's backend 'default'")
        assert stage.children(pk) == []


class TestKeys:
    def test_poll_sends_to_key_of_child_spawned_before(self, stage: Stage) -> None:
        def child(context: PollContext[Any]) -> Any:
            return Done([message.body for message in context.inbox.take()])

        def poll(context: PollContext[Any]) -> Any:
            if context.polls == 0:
                return stage.child(child, key="kid"), Send("kid", "first"), Send("kid", "second"), Suspend()
            return Done(context.inbox.popleft().body)

        pk = stage.enter(poll)
        stage.run()

        assert stage.result(pk) == ["first", "second"]

    def test_spawn_returned_twice_fails_poll(self, stage: Stage) -> None:
        child = Spawn(actors.double, 4)
        first, second = (stage.enter(lambda context: (child, Suspend())) for _ in range(2))
        stage.run()

        assert len(stage.children(first)) == 1
        assert stage.status(second) == Status.SCHEDULED
        assert stage.error(second).startswith("InvalidActions: poll() returned a Spawn that was spawned before.")
        assert stage.row(second).attempts == 1
