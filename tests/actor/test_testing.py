"""jobqueue.testing: run tasks in the transaction of a test."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.test import TestCase
from django.utils import timezone

import jobqueue
from jobqueue import Backoff, Done, Kind, PollContext, Sleep, testing
from jobqueue.conf.compat import task_finished, task_started
from jobqueue.exceptions import Expired, UnboundCall
from jobqueue.models import Heartbeat, InboxMessage, Task
from jobqueue.values.ids import new_id
from jobqueue.values.states import Status
from tests import actors as trees
from tests import tasks
from tests.actor import actors
from tests.actor.stage import AsyncPuppet, Stage
from tests.factories import ExecutorFactory
from tests.fixtures import Options

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestInDjangoTestCase(TestCase):
    """Use jobqueue.testing as a site does, without fixtures of this suite."""

    databases = {"default", "sqlite"}

    def test_actor_runs_in_django_testcase(self) -> None:
        result = trees.Fibonacci.enqueue(6)
        testing.run_until_idle()
        result.refresh()
        assert result.return_value == 8

    async def test_async_test_runs_actor(self) -> None:
        result = await actors.Later.aenqueue(1)
        await sync_to_async(testing.run_until_idle)()
        await result.arefresh()
        assert result.return_value == 2

    def test_run_until_idle_runs_one_backend(self) -> None:
        here, there = tasks.add.enqueue(1), tasks.add.using(backend="sqlite").enqueue(2)
        testing.run_until_idle()
        there.refresh()
        assert not there.is_finished
        testing.run_until_idle(backend="sqlite")
        here.refresh()
        there.refresh()
        assert (here.return_value, there.return_value) == (2, 3)


class TestRunUntilIdle:
    def test_run_until_idle_runs_actor_and_children(self, stage: Stage) -> None:
        pk = UUID(trees.Fibonacci.enqueue(7).id)
        polls = stage.run()

        assert stage.result(pk) == 13
        assert polls[0].id == polls[-1].id == pk
        assert polls[-1].status is Status.SUCCESSFUL
        assert {poll.task_type for poll in polls} == {"tests.actors.Fibonacci"}

    @pytest.mark.parametrize(
        ("body", "value"),
        [(tasks.add, 3), (tasks.add_later, 3), (actors.double, 4), (actors.Later, 3), (actors.make_group, "2")],
    )
    def test_run_until_idle_runs_every_kind_of_body(self, stage: Stage, body: Any, value: Any) -> None:
        result = body.enqueue("2" if body is actors.make_group else 2)
        stage.run()

        assert stage.result(UUID(result.id)) == value

    def test_run_until_idle_skips_paused_queues(self, stage: Stage) -> None:
        first, second = (tasks.add.using(queue_name=name).enqueue(1) for name in ("one", "two"))
        jobqueue.api.pause("two")
        assert [poll.id for poll in stage.run()] == [UUID(first.id)]
        jobqueue.api.resume("two")
        assert [poll.id for poll in stage.run()] == [UUID(second.id)]

    def test_endless_loop_raises_and_names_actor(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: None)

        with pytest.raises(AssertionError, match=f"Not idle after 20 polls.*Puppet {pk}"):
            stage.run(limit=20)
        assert stage.status(pk) == Status.READY
        assert stage.row(pk).polls == 20
        jobqueue.cancel(pk)
        tasks.add.enqueue(1)
        assert len(stage.run(limit=1)) == 1

    def test_failed_poll_is_returned_and_not_raised(self, stage: Stage) -> None:
        failing = tasks.fail.using(backoff=Backoff(base=60)).enqueue("a reason")
        expired = tasks.add.using(expires=timedelta(minutes=1)).enqueue(1)
        isolated = tasks.add.enqueue(1)
        stage.change(UUID(isolated.id), executor_losses=2)
        stage.advance(61)
        polls = {str(poll.id): (poll.status, type(poll.error)) for poll in stage.run()}

        assert polls == {
            failing.id: (Status.SCHEDULED, ValueError),
            expired.id: (Status.FAILED, Expired),
            isolated.id: (Status.SUCCESSFUL, type(None)),
        }
        assert stage.error(UUID(failing.id)) == "ValueError: a reason"

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"task_type": "unknown.task"}, "Executor testing knows no task 'unknown.task'."),
            ({"args": [1, 2, 3]}, "too many positional arguments: 3, and it takes 2."),
        ],
    )
    def test_task_without_code_raises_after_all_others(
        self, stage: Stage, changes: dict[str, Any], reason: str
    ) -> None:
        waiting, other = tasks.add.enqueue(1), tasks.add.enqueue(1)
        stage.change(UUID(waiting.id), **changes)

        with pytest.raises(AssertionError, match=re.escape(reason)):
            stage.run()

        assert stage.row(UUID(waiting.id)).status == Status.AWAITING_CODE
        assert stage.row(UUID(other.id)).status == Status.SUCCESSFUL

    def test_task_that_awaits_code_runs_when_its_code_has_come(self, stage: Stage) -> None:
        waiting = tasks.add.enqueue(1)
        stage.change(UUID(waiting.id), task_type="unknown.task")
        with pytest.raises(AssertionError):
            stage.run()
        stage.change(UUID(waiting.id), task_type=tasks.add.task_type)

        assert [poll.status for poll in stage.run()] == [Status.SUCCESSFUL]

    def test_unbound_call_fails_when_its_wait_has_passed(self, stage: Stage) -> None:
        waiting = tasks.add.enqueue(1)
        stage.change(UUID(waiting.id), args=[1, 2, 3])
        with pytest.raises(AssertionError):
            stage.run()
        stage.advance(86_401)

        assert [(poll.status, type(poll.error)) for poll in stage.run()] == [(Status.FAILED, UnboundCall)]

    def test_run_until_idle_sends_signals(self, stage: Stage) -> None:
        received: list[Any] = []

        def receive(signal: Any, task_result: Any, **_: Any) -> None:
            received.append((signal, task_result.id, task_result.status))

        task_started.connect(receive)
        task_finished.connect(receive)
        try:
            result = tasks.add.enqueue(1)
            stage.run()
        finally:
            task_started.disconnect(receive)
            task_finished.disconnect(receive)

        assert received == [(task_started, result.id, "RUNNING"), (task_finished, result.id, "SUCCESSFUL")]

    def test_keyboard_interrupt_in_body_ends_test(self, stage: Stage) -> None:
        def poll(context: PollContext[Any]) -> Any:
            raise KeyboardInterrupt

        stage.enter(poll)

        with pytest.raises(KeyboardInterrupt):
            stage.run()


class TestTransactions:
    @pytest.mark.parametrize("how", ["raises", "hides it"])
    def test_failed_statement_in_body_keeps_transaction_of_test(self, stage: Stage, how: str) -> None:
        def poll(context: PollContext[Any]) -> Any:
            try:
                with connections[stage.database].cursor() as cursor:
                    cursor.execute("SELECT nonsense")
            except Exception:
                if how == "raises":
                    raise
            return Done()

        pk = stage.enter(poll)
        stage.run()

        assert stage.status(pk) == (Status.SCHEDULED if how == "raises" else Status.SUCCESSFUL)

    def test_only_writes_of_failed_atomic_body_are_undone(self, stage: Stage) -> None:
        def poll(context: PollContext[Any]) -> Any:
            Group.objects.using(stage.database).create(name="written")
            raise ValueError("failed")

        stage.enter(poll)
        stage.run()
        result = actors.make_group.enqueue("written")
        stage.run()

        assert stage.error(UUID(result.id)).startswith("IntegrityError")
        assert Group.objects.using(stage.database).count() == 1

    def test_async_body_sees_transaction_of_test(self, stage: Stage) -> None:
        Group.objects.using(stage.database).create(name="not committed")

        async def poll(context: PollContext[Any]) -> Any:
            return Done([group.name async for group in Group.objects.using(stage.database)])

        pk = stage.enter(poll, actor=AsyncPuppet)
        stage.run()

        assert stage.result(pk) == ["not committed"]

    @pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
    def test_run_until_idle_works_without_transaction(self, stage: Stage) -> None:
        pk = UUID(trees.Fibonacci.enqueue(5).id)
        group = actors.make_group.enqueue("kept")
        stage.run()

        assert stage.result(pk) == 5
        assert stage.result(UUID(group.id)) == "kept"
        assert not transaction.get_connection(stage.database).in_atomic_block


class TestPollOnce:
    @pytest.mark.parametrize("name", [lambda r: r, lambda r: r.id, lambda r: UUID(r.id), lambda r: Task(pk=r.id)])
    def test_poll_once_takes_result_id_or_row(self, stage: Stage, name: Any) -> None:
        other, result = tasks.add.enqueue(1), tasks.add.enqueue(2)
        poll = testing.poll_once(name(result))

        assert (poll.id, poll.status, poll.error) == (UUID(result.id), Status.SUCCESSFUL, None)
        assert stage.status(UUID(other.id)) == Status.READY

    def test_poll_once_wakes_actor_with_message_or_due(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: Sleep(timedelta(hours=1)) if not context.inbox.take() else Done())
        testing.poll_once(pk)
        stage.advance(3600)
        testing.poll_once(pk)
        stage.send(pk)
        testing.poll_once(pk)

        assert stage.status(pk) == Status.SUCCESSFUL

    def test_poll_once_raises_if_task_is_not_ready(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: Sleep(timedelta(hours=1)))
        testing.poll_once(pk)

        with pytest.raises(AssertionError, match="it is SUSPENDED until"):
            testing.poll_once(pk)
        jobqueue.cancel(pk)
        with pytest.raises(AssertionError, match=r"it is CANCELLED\."):
            testing.poll_once(pk)
        with pytest.raises(AssertionError, match="there is none"):
            testing.poll_once(new_id())

    def test_poll_once_takes_backend(self, stage: Stage, options: Options) -> None:
        result = tasks.add.using(backend="sqlite").enqueue(1)
        assert testing.poll_once(result).status is Status.SUCCESSFUL
        result = tasks.add.using(backend="sqlite").enqueue(1)
        assert testing.poll_once(result.id, backend="sqlite").status is Status.SUCCESSFUL


class TestAdvance:
    def test_advance_moves_only_times(self, stage: Stage) -> None:
        pk = stage.enter(lambda context: Sleep(timedelta(hours=1)), expires=timedelta(hours=2))
        stage.run()
        stage.send(pk)
        stage.change(pk, timed_out=False)
        before: dict[str, Any] = vars(stage.row(pk))
        sent_at = InboxMessage.objects.using(stage.database).get().sent_at
        now = timezone.now()
        ExecutorFactory.create(using=stage.database, heartbeat=now)

        stage.advance(90)

        after: dict[str, Any] = vars(stage.row(pk))
        moved = {name for name in after.keys() - {"_state"} if after[name] != before[name]}
        assert moved == {"rank", "wake_at", "expires_at", "enqueued_at", "started_at", "last_attempted_at"}
        assert {before[name] - after[name] for name in moved} == {timedelta(seconds=90)}
        assert sent_at - InboxMessage.objects.using(stage.database).get().sent_at == timedelta(seconds=90)
        assert now - Heartbeat.objects.using(stage.database).get().at == timedelta(seconds=90)

    def test_advance_keeps_other_backends(self, stage: Stage, options: Options) -> None:
        options(DATABASE=stage.database)
        result = tasks.add.using(backend="sqlite", run_after=timedelta(hours=1)).enqueue(1)
        stage.advance(3600)
        assert stage.run(backend="sqlite") == []

        testing.advance(timedelta(hours=1), backend="sqlite")
        assert [str(poll.id) for poll in stage.run(backend="sqlite")] == [result.id]


class TestContext:
    def test_context_has_fresh_state(self) -> None:
        context = testing.context(trees.Fibonacci)

        assert context.state == trees.Fibonacci.State()
        assert len(context.inbox) == 0
        assert context.idempotency_key == f"{context.id}:0"

    def test_poll_runs_on_context_without_database(self) -> None:
        state = trees.Fibonacci.State(total=3, pending=2)
        inbox = [testing.message(n, kind=Kind.CHILD_SUCCESSFUL) for n in (2, 3)]

        assert trees.Fibonacci().poll(testing.context(trees.Fibonacci, state=state, inbox=inbox), 6) == Done(8)
        assert state == trees.Fibonacci.State(total=8, pending=0)

    def test_context_decodes_bodies_like_executor(self) -> None:
        for body in (actors.Publish("Alps"), {"type": "publish", "title": "Alps"}):
            assert actors.TypedActor().poll(testing.context(actors.TypedActor, inbox=[body])) == Done("published Alps")
        with pytest.raises(ValueError, match="Invalid value"):
            testing.context(actors.TypedActor, inbox=[{"type": "sell"}])

    def test_helpers_refuse_invalid_values(self) -> None:
        with pytest.raises(TypeError, match=r"of an actor, .* call\(\) a function task"):
            testing.context(tasks.add)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"state is not what WithDataclass\.State allows"):
            testing.context(actors.WithDataclass, state=5)
        with pytest.raises(ValueError, match="'x' is not a valid Kind"):
            testing.message(kind="x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes a TaskResult, a row or an id, not 5"):
            testing.poll_once(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"takes a timedelta, .* not 60"):
            testing.advance(60)  # type: ignore[arg-type]

    def test_context_takes_other_fields(self) -> None:
        pk = new_id()
        context = testing.context(actors.TypedActor, id=pk, timed_out=True, polls=3, key="k", attempt=2)

        assert (context.timed_out, context.key, context.attempt) == (True, "k", 2)
        assert context.idempotency_key == f"{pk}:3"
        assert context.cancelled is False
        assert async_to_sync(actors.Later().poll)(testing.context(actors.Later), 1) == Done(2)
