"""Failed steps, failed children, errors of the body, compensations and cancels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from operator import methodcaller
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, transaction
from django.utils import timezone

import jobqueue
from jobqueue import Backoff, GiveUp, Retry, StepFailed, WorkflowCancelled, WorkflowContext, step
from jobqueue.api import workflows as changes
from jobqueue.conf.compat import InvalidTask
from jobqueue.exceptions import ShuttingDown, TaskCancelled
from jobqueue.executor.running import workflow_runner
from jobqueue.executor.running.attempt import RunningTask
from jobqueue.executor.running.workflow_runner import WorkflowRun
from jobqueue.values.states import Status
from tests.actor.stage import Puppet
from tests.workflow import workflows
from tests.workflow.stage import Counting, WorkflowStage, script
from tests.workflow.workflows import CancelOrder, Shipped

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

twice = step(max_attempts=2, backoff=Backoff(base=3000.0, jitter=0.0))


@pytest.fixture(autouse=True)
def empty() -> None:
    workflows.charges.clear()
    workflows.refunds.clear()


@pytest.fixture
def learn_of_cancel(monkeypatch: pytest.MonkeyPatch) -> Callable[[], RunningTask]:
    """Return a function that lets the run learn of a cancel, as a heartbeat does. It returns the running task."""
    runs, poll = list[WorkflowRun](), WorkflowRun.poll

    def keep(run: WorkflowRun) -> Any:
        runs.append(run)
        return poll(run)

    def learn() -> RunningTask:
        running = runs[-1]._attempt.running
        running.interrupt(TaskCancelled)
        return running

    monkeypatch.setattr(WorkflowRun, "poll", keep)
    return learn


@step(atomic=True, max_attempts=1)
def make_group(name: str, error: bool) -> None:
    Group.objects.create(name=name)
    if error:
        raise ValueError("after the write")


class TestSteps:
    def test_failed_step_waits_for_its_next_attempt(self, stage: WorkflowStage) -> None:
        work = Counting("work", "done", errors=1)
        pk = stage.play(lambda context: context.step(twice(work)))
        assert (stage.status(pk), stage.journal(pk)) == (Status.SUSPENDED, {"work": "RETRYING"})
        stage.pass_time(2900)
        assert work.calls == 1
        stage.pass_time(101)
        assert stage.result(pk) == "done"
        assert stage.entry(pk, "work").attempts == 2

    def test_step_that_has_failed_can_be_caught_in_each_run(self, stage: WorkflowStage) -> None:
        work = Counting("work", errors=9)

        def body(context: WorkflowContext) -> str:
            try:
                context.step(step(max_attempts=1)(work))
            except StepFailed as failed:
                context.sleep(timedelta(seconds=1))
                return f"{failed.name} {failed.attempts} {failed.error['message']}"
            return "not reached"

        pk = stage.play(body)
        stage.pass_time(2)
        assert stage.result(pk) == "work 1 work is broken"
        assert work.calls == 1

    def test_uncaught_failed_step_runs_again_after_requeue(self, stage: WorkflowStage) -> None:
        before, work = Counting("before", 1), Counting("work", 2, errors=1)

        def body(context: WorkflowContext) -> int:
            return int(context.step(before) + context.step(step(max_attempts=1)(work)))

        pk = stage.play(body)
        assert stage.status(pk) is Status.FAILED
        assert stage.error(pk) == "StepFailed: Step work failed once: ValueError: work is broken"
        assert stage.row(pk).attempts == 1
        jobqueue.requeue(pk)
        stage.run()
        assert stage.result(pk) == 3
        assert (before.calls, work.calls) == (1, 2)

    def test_failed_attempt_of_a_step_is_logged(self, stage: WorkflowStage, caplog: pytest.LogCaptureFixture) -> None:
        pk = stage.play(lambda context: context.step(twice(Counting("work", errors=1))))
        lines = [line for line in caplog.messages if line.startswith("step.failed")]
        assert lines == [f"step.failed task=tests.script id={pk} step=work error=ValueError: work is broken"]

    def test_give_up_ends_the_attempts_of_a_step(self, stage: WorkflowStage) -> None:
        def work() -> None:
            raise GiveUp("no use")

        pk = stage.play(lambda context: context.step(work))
        assert stage.status(pk) is Status.FAILED
        assert "GiveUp: no use" in stage.error(pk)

    def test_step_may_ask_for_a_retry_beyond_the_longest_wait(self, stage: WorkflowStage) -> None:
        def work() -> None:
            raise Retry(after=1e15)

        pk = stage.play(lambda context: context.step(work))
        assert (stage.status(pk), stage.journal(pk)) == (Status.SUSPENDED, {"work": "RETRYING"})

    def test_result_has_the_annotated_type_in_the_first_run_too(self, stage: WorkflowStage) -> None:
        def price() -> float:
            return 5

        def body(context: WorkflowContext) -> Any:
            charged = context.step(Counting("charge"), context.step(price))
            context.receive(Shipped)
            return charged

        pk = stage.play(body)
        stage.send_and_run(pk, Shipped("T1"))
        assert stage.status(pk) is Status.SUCCESSFUL

    def test_object_that_has_no_hash_may_be_a_step(self, stage: WorkflowStage) -> None:
        @dataclass
        class Add:
            number: int

            def __call__(self, other: int) -> int:
                return self.number + other

        pk = stage.play(lambda context: context.step(step(name="add")(Add(1)), 2))
        assert stage.result(pk) == 3

    def test_result_that_is_no_json_fails_the_step_once(self, stage: WorkflowStage) -> None:
        pk = stage.play(lambda context: context.step(step(name="work")(object)))
        assert stage.status(pk) is Status.FAILED
        assert "object is not JSON" in stage.error(pk)

    @pytest.mark.parametrize("error", [False, True])
    def test_atomic_step_writes_with_its_record_or_not_at_all(self, stage: WorkflowStage, error: bool) -> None:
        def body(context: WorkflowContext) -> None:
            context.step(make_group, "by a step", error)

        pk = stage.play(body)
        if stage.database == "default":
            assert Group.objects.filter(name="by a step").exists() is not error
        assert stage.journal(pk) == {"make_group": "RETRYING" if error else "SUCCESSFUL"}

    def test_error_of_the_body_uses_the_attempts_of_the_workflow(self, stage: WorkflowStage) -> None:
        work, attempts = Counting("work"), []

        def body(context: WorkflowContext) -> None:
            context.step(work)
            attempts.append(context.attempt)
            raise KeyError("a bug")

        pk = stage.play(body)
        for _ in range(3):
            stage.pass_time(60)
        assert stage.status(pk) is Status.FAILED
        assert (attempts, work.calls) == ([1, 2, 3], 1)

    def test_async_step_runs_in_a_plain_workflow(self, stage: WorkflowStage) -> None:
        pk = stage.play(lambda context: context.step(workflows.double, 4))
        assert stage.result(pk) == 8

    def test_key_of_a_step_is_the_same_in_each_attempt(self, stage: WorkflowStage) -> None:
        keys = []

        def work() -> None:
            keys.append(jobqueue.step_key())
            if len(keys) < 2:
                raise ValueError

        pk = stage.play(lambda context: [context.step(twice(work)), context.step(work)])
        stage.pass_time(3001)
        assert stage.status(pk) is Status.SUCCESSFUL
        assert keys[0] == keys[1] == f"{pk}:0:work"
        assert keys[2] == f"{pk}:0:work#2"


class TestChildren:
    def test_failed_child_that_is_requeued_lets_its_parent_go_on(self, stage: WorkflowStage) -> None:
        work = Counting("work", 7, errors=1)

        def child(context: WorkflowContext) -> int:
            return int(context.step(step(max_attempts=1)(work)))

        name = stage.name(child)

        def body(context: WorkflowContext) -> int:
            return sum(context.gather(context.spawn(script, name), context.spawn(workflows.pack, 1)))

        pk = stage.play(body)
        assert stage.status(pk) is Status.FAILED
        assert stage.error(pk).startswith("ChildFailed: Child script (")
        failed = next(row for row in stage.children(pk) if row.status == Status.FAILED)
        jobqueue.requeue(failed.id)
        stage.run()
        assert stage.result(pk) == 17

    def test_workflow_takes_results_of_children_requeued_before_it(self, stage: WorkflowStage) -> None:
        works = [step(max_attempts=1)(Counting("work", number, errors=1)) for number in (1, 2)]
        names = [stage.name(methodcaller("step", work)) for work in works]
        pk = stage.play(lambda context: sum(context.gather(*(context.spawn(script, name) for name in names))))
        assert stage.status(pk) is Status.FAILED
        jobqueue.requeue([row.id for row in stage.children(pk)])
        stage.run()
        assert [row.status for row in stage.children(pk)] == [Status.SUCCESSFUL, Status.SUCCESSFUL]
        jobqueue.requeue(pk)
        stage.run()
        assert stage.result(pk) == 3

    def test_workflow_needs_a_requeue_for_each_failed_child(self, stage: WorkflowStage) -> None:
        works = [Counting("work", number, errors=1) for number in (1, 2, 4)]
        names = [stage.name(methodcaller("step", step(max_attempts=1)(work))) for work in works]
        pk = stage.play(lambda context: sum(context.gather(*[context.spawn(script, name) for name in names])))
        for failed in (2, 1, 0):
            assert stage.status(pk) is Status.FAILED
            assert jobqueue.requeue(pk).requeued == 2
            stage.run()
            assert [row.status for row in stage.children(pk)].count(Status.FAILED) == failed
        assert stage.result(pk) == 7
        assert [work.calls for work in works] == [2, 2, 2]

    def test_gather_returns_failed_children_if_it_should(self, stage: WorkflowStage) -> None:
        def body(context: WorkflowContext) -> list[str]:
            failing = workflows.pack.using(max_attempts=1)
            handles = [context.spawn(failing, -1), context.spawn(workflows.pack, 2)]
            results = context.gather(*handles, return_exceptions=True)
            return [type(result).__name__ for result in results]

        pk = stage.play(body)
        assert stage.result(pk) == ["ChildFailed", "int"]


class TestCompensations:
    def test_error_in_the_block_runs_the_compensation_once(self, stage: WorkflowStage) -> None:
        pk = UUID(workflows.checkout.enqueue(1, []).id)
        stage.run()
        stage.send_and_run(pk, CancelOrder())
        assert stage.status(pk) is Status.FAILED
        assert "OrderCancelled" in stage.error(pk)
        assert workflows.refunds == ["charge-1"]
        jobqueue.requeue(pk)
        stage.run()
        assert stage.status(pk) is Status.FAILED
        assert (workflows.charges, workflows.refunds) == ([1], ["charge-1"])

    def test_cancel_of_a_waiting_workflow_runs_its_compensations(self, stage: WorkflowStage) -> None:
        pk = UUID(workflows.checkout.enqueue(2, []).id)
        stage.run()
        jobqueue.cancel(pk)
        stage.run()
        assert stage.status(pk) is Status.CANCELLED
        assert workflows.refunds == ["charge-2"]

    def test_failed_compensation_is_run_again_by_requeue(self, stage: WorkflowStage) -> None:
        undo, outer = Counting("undo", errors=1), Counting("outer")

        def body(context: WorkflowContext) -> None:
            with context.compensate(outer), context.compensate(step(max_attempts=1)(undo)):
                raise ValueError("no luck")

        pk = stage.play(body)
        assert stage.status(pk) is Status.FAILED
        assert stage.error(pk).startswith("CompensationFailed: compensation failed: Step undo failed once")
        assert outer.calls == 0
        jobqueue.requeue(pk)
        stage.run()
        assert stage.error(pk) == "ValueError: no luck"
        assert (undo.calls, outer.calls) == (2, 1)

    def test_compensation_retries_although_the_workflow_is_cancelled(self, stage: WorkflowStage) -> None:
        undo = Counting("undo", errors=1)

        def body(context: WorkflowContext) -> None:
            with context.compensate(twice(undo)):
                context.receive(Shipped)

        pk = stage.play(body)
        jobqueue.cancel(pk)
        stage.run()
        assert (stage.status(pk), undo.calls) == (Status.SUSPENDED, 1)
        stage.pass_time(3001)
        assert (stage.status(pk), undo.calls) == (Status.CANCELLED, 2)

    def test_run_that_no_longer_fails_still_finishes_its_compensations(self, stage: WorkflowStage) -> None:
        inner, outer, after = Counting("inner", errors=1), Counting("outer"), Counting("after")
        errors = [ValueError("only once")]

        def body(context: WorkflowContext) -> None:
            with context.compensate(outer):
                with context.compensate(twice(inner)):
                    if errors:
                        raise errors.pop()
                    context.step(after)

        pk = stage.play(body)
        stage.pass_time(3001)
        assert stage.status(pk) is Status.FAILED
        assert (inner.calls, outer.calls, after.calls) == (2, 1, 0)

    def test_database_that_fails_once_does_not_end_compensations(
        self, stage: WorkflowStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        undo, record, errors = Counting("undo"), WorkflowRun.record, [OperationalError("the server stops")]

        def fail_once(run: WorkflowRun, entries: Any, effects: Any) -> None:
            if undo.calls and errors:
                raise errors.pop()
            record(run, entries, effects)

        def body(context: WorkflowContext) -> None:
            with context.compensate(undo):
                context.receive(Shipped)

        pk = stage.play(body)
        monkeypatch.setattr(WorkflowRun, "record", fail_once)
        jobqueue.cancel(pk)
        stage.run()
        stage.pass_time(11)
        assert (stage.status(pk), stage.journal(pk)["undo"]) == (Status.CANCELLED, "SUCCESSFUL")

    def test_error_before_an_unfinished_compensation_is_tried_again(self, stage: WorkflowStage) -> None:
        undo, bugs = Counting("undo", errors=1), list[Exception]()

        def body(context: WorkflowContext) -> None:
            if bugs:
                raise bugs.pop()
            with context.compensate(twice(undo)):
                context.receive(Shipped)

        pk = stage.play(body)
        jobqueue.cancel(pk)
        stage.run()
        bugs.append(TypeError("a bug before the block"))
        stage.pass_time(3001)
        assert (stage.status(pk), undo.calls) == (Status.SCHEDULED, 1)
        stage.pass_time(11)
        assert (stage.status(pk), undo.calls) == (Status.CANCELLED, 2)

    def test_requeue_goes_on_after_errors_before_a_compensation(self, stage: WorkflowStage) -> None:
        inner, outer, broken = Counting("inner"), Counting("outer"), [False]

        def body(context: WorkflowContext) -> None:
            if broken[0]:
                raise TypeError("a bug before the block")
            with context.compensate(outer):
                with suppress(ValueError), context.compensate(inner):
                    raise ValueError("no luck")
                context.sleep(timedelta(seconds=60))
                raise ValueError("no luck again")

        pk = stage.play(body)
        broken[0] = True
        for seconds in (61, 11, 21):
            assert stage.status(pk) is not Status.FAILED
            stage.pass_time(seconds)
        assert (stage.status(pk), outer.calls) == (Status.FAILED, 0)
        broken[0] = False
        jobqueue.requeue(pk)
        stage.run()
        assert stage.error(pk) == "ValueError: no luck again"
        assert (inner.calls, outer.calls) == (1, 1)

    @pytest.mark.parametrize("error", [ValueError("a bug"), GiveUp("a bug"), None])
    def test_failed_body_leaves_no_block_open_that_it_has_left(
        self, stage: WorkflowStage, error: Exception | None
    ) -> None:
        undo = Counting("undo")

        def body(context: WorkflowContext) -> object:
            with context.compensate(undo), context.shield():
                context.sleep(timedelta(seconds=60))
            if error is not None:
                raise error
            return object()  # is no JSON

        pk = stage.play(body)
        for seconds in (61, 11, 21):
            stage.pass_time(seconds)
        assert stage.status(pk) is Status.FAILED
        assert stage.journal(pk) == {"undo": "SKIPPED", "shield": "SUCCESSFUL", "sleep": "WAITING"}
        jobqueue.requeue(pk)
        for seconds in (0, 11, 21):
            stage.pass_time(seconds)
        assert (stage.status(pk), undo.calls) == (Status.FAILED, 0)

    @pytest.mark.parametrize("kind", ["compensate", "shield"])
    def test_block_that_is_entered_again_is_open_again(self, stage: WorkflowStage, kind: str) -> None:
        """A rewind leads back into a block that was left well. A cancel then runs its compensation, or waits for it."""
        undo, work = Counting("undo"), Counting("work", 1)

        def body(context: WorkflowContext) -> None:
            with context.compensate(undo) if kind == "compensate" else context.shield():
                context.receive(Shipped)
            context.step(work)
            context.sleep(timedelta(days=1))

        pk = stage.play(body)
        stage.send_and_run(pk, Shipped("T1"))
        changes.rewind(pk, "receive")
        stage.run()
        assert list(stage.journal(pk).values()) == ["WAITING", "WAITING"]
        jobqueue.cancel(pk)
        stage.run()
        if kind == "compensate":
            assert (stage.status(pk), undo.calls) == (Status.CANCELLED, 1)
        else:
            assert stage.status(pk) is Status.SUSPENDED
            stage.send_and_run(pk, Shipped("T2"))
            assert (stage.status(pk), work.calls) == (Status.CANCELLED, 1)

    @pytest.mark.parametrize("task", [workflows.pack, workflows.fib, Puppet])
    def test_task_is_refused_as_a_compensation(self, task: Any) -> None:
        with pytest.raises(InvalidTask, match="is a task, not a step"):
            step(task)

    def test_child_whose_key_is_taken_fails_a_workflow_that_has_undone_a_block(self, stage: WorkflowStage) -> None:
        keyed = workflows.pack.using(key="taken", run_after=timedelta(days=1))
        keyed.enqueue(1)

        def body(context: WorkflowContext) -> None:
            with suppress(ValueError), context.compensate(Counting("undo")):
                raise ValueError("no luck")
            context.gather(context.spawn(keyed, 1))

        pk = stage.play(body)
        stage.pass_time(11)
        stage.pass_time(21)
        assert stage.status(pk) is Status.FAILED
        assert stage.error(pk).startswith("DuplicateKey: ")


class TestCancel:
    def test_cancel_without_compensations_ends_at_once(self, stage: WorkflowStage) -> None:
        pk = stage.play(lambda context: context.receive())
        jobqueue.cancel(pk)
        assert stage.status(pk) is Status.CANCELLED

    def test_cancelled_workflow_goes_on_after_requeue(self, stage: WorkflowStage) -> None:
        pk = stage.play(lambda context: context.receive(int))
        jobqueue.cancel(pk)
        jobqueue.requeue(pk)
        stage.run()
        stage.send_and_run(pk, 3)
        assert stage.result(pk) == 3

    def test_cancel_is_noticed_at_the_next_recorded_step(self, stage: WorkflowStage) -> None:
        after = Counting("after")

        def cancel() -> None:
            jobqueue.cancel(pk)

        def body(context: WorkflowContext) -> None:
            context.step(cancel)
            context.step(after)

        pk = stage.start(body)
        stage.run()
        assert (stage.status(pk), after.calls) == (Status.CANCELLED, 0)
        assert stage.journal(pk) == {"cancel": "SUCCESSFUL", "after": "CANCELLED"}

    def test_cancel_between_a_step_and_its_compensation_undoes_the_step(self, stage: WorkflowStage) -> None:
        undo, after = Counting("undo"), Counting("after")

        def charge() -> None:
            jobqueue.cancel(pk)

        def body(context: WorkflowContext) -> None:
            context.step(charge)
            with context.compensate(undo):
                context.step(after)

        pk = stage.start(body)
        stage.run()
        assert (stage.status(pk), undo.calls, after.calls) == (Status.CANCELLED, 1, 0)

    def test_retry_of_a_compensation_undoes_no_inner_block_that_ended_well(self, stage: WorkflowStage) -> None:
        inner, outer = Counting("inner"), Counting("outer", errors=1)

        def body(context: WorkflowContext) -> None:
            with context.compensate(twice(outer)):
                with context.compensate(inner):
                    context.receive(Shipped)
                context.receive(CancelOrder)

        pk = stage.play(body)
        stage.send_and_run(pk, Shipped("T1"))
        jobqueue.cancel(pk)
        stage.run()
        stage.pass_time(3001)
        assert (stage.status(pk), inner.calls, outer.calls) == (Status.CANCELLED, 0, 2)

    def test_error_in_a_run_beside_a_cancel_keeps_compensations(
        self, stage: WorkflowStage, learn_of_cancel: Any
    ) -> None:
        undo, errors = Counting("undo"), [OSError("a file is missing")]

        def body(context: WorkflowContext) -> None:
            if pk is not None and errors:
                learn_of_cancel()
                raise errors.pop()
            with context.compensate(undo):
                context.receive(Shipped)

        pk: UUID | None = None
        pk = stage.play(body)
        stage.change(pk, cancel_requested_at=timezone.now())
        stage.send_and_run(pk, Shipped("T1"))
        stage.pass_time(11)
        assert (stage.status(pk), undo.calls) == (Status.CANCELLED, 1)

    def test_stop_of_the_executor_after_a_cancel_keeps_compensations(
        self, stage: WorkflowStage, learn_of_cancel: Any
    ) -> None:
        undo = Counting("undo")

        def slow() -> None:
            stage.change(pk, cancel_requested_at=timezone.now())
            learn_of_cancel().interrupt(ShuttingDown)
            raise learn_of_cancel().reason()

        def body(context: WorkflowContext) -> None:
            context.step(Counting("charge"))
            with context.compensate(undo):
                context.step(slow)

        pk = stage.start(body)
        stage.run()
        assert (stage.status(pk), undo.calls) == (Status.CANCELLED, 1)

    def test_workflow_cancelled_amid_its_spawns_spawns_after_requeue(
        self, stage: WorkflowStage, learn_of_cancel: Any
    ) -> None:
        cancels = [learn_of_cancel]

        def body(context: WorkflowContext) -> int:
            first = context.spawn(workflows.pack, 1)
            if cancels:
                cancels.pop()()
            return sum(context.gather(first, context.spawn(workflows.pack, 2)))

        pk = stage.play(body)
        assert stage.status(pk) is Status.CANCELLED
        jobqueue.requeue(pk)
        stage.run()
        assert stage.result(pk) == 30

    @pytest.mark.parametrize("way", ["step", "atomic", "gather", "send", "undo", "shield", "fail", "return"])
    def test_cancel_of_a_tree_reaches_children_that_were_not_recorded(self, stage: WorkflowStage, way: str) -> None:
        """The cancel cannot find a child that the running workflow has spawned, but not written."""
        undo, after, cancels = Counting("undo"), Counting("after"), [1]

        def body(context: WorkflowContext) -> int:
            context.step(Counting("before"))
            with context.compensate(undo):
                child = context.spawn(workflows.pack, 1)
                if cancels:
                    with context._recorder._guard.pause():  # type: ignore[attr-defined]
                        jobqueue.cancel(pk, tree=bool(cancels.pop()))
                match way:
                    case "step":
                        context.step(after, str(child.id))
                    case "atomic":
                        context.step(step(atomic=True)(after), str(child.id))
                    case "send":
                        context.send(child, "hello")
                    case "undo" | "fail":
                        if way == "fail":
                            context.step(step(max_attempts=1)(Counting("broken", errors=1)))
                        raise ValueError("no luck")
                    case "shield":
                        with context.shield():
                            return sum(context.gather(child))
                    case "return":
                        return 0
                return sum(context.gather(child))

        pk = stage.start(body)
        stage.run()
        assert [child.status for child in stage.children(pk)] in ([], [Status.CANCELLED])
        assert after.calls == 0
        if way == "return":
            assert stage.result(pk) == 0
        elif way == "undo":
            assert stage.error(pk) == "ValueError: no luck"
        else:
            assert (stage.status(pk), undo.calls) == (Status.CANCELLED, 1)
        assert stage.journal(pk).get("pack") in (None, "CANCELLED")

    def test_children_of_a_shield_are_spawned_despite_a_cancel(self, stage: WorkflowStage) -> None:
        cancels = [1]

        def body(context: WorkflowContext) -> None:
            with context.shield():
                context.spawn(workflows.pack, 1)
                if cancels:
                    with context._recorder._guard.pause():  # type: ignore[attr-defined]
                        jobqueue.cancel(pk, tree=bool(cancels.pop()))
            context.receive(Shipped)

        pk = stage.start(body)
        stage.run()
        assert stage.status(pk) is Status.CANCELLED
        assert [child.status for child in stage.children(pk)] == [Status.SUCCESSFUL]

    def test_shield_is_recorded_before_its_first_step(self, stage: WorkflowStage) -> None:
        """A cancel waits for it, also if the executor dies in that step."""
        seen = []

        def look() -> None:
            seen.append(stage.journal(pk))

        def body(context: WorkflowContext) -> None:
            with context.shield():
                context.step(look)

        pk = stage.start(body)
        stage.run()
        assert seen == [{"shield": "WAITING"}]

    def test_cancel_of_a_running_workflow_raises_at_its_next_wait(self, stage: WorkflowStage) -> None:
        undo, shielded, after = Counting("undo"), Counting("shielded"), Counting("after")

        def cancel() -> None:
            jobqueue.cancel(pk)

        def body(context: WorkflowContext) -> None:
            with context.compensate(undo):
                context.step(cancel)
                try:
                    context.receive()
                except WorkflowCancelled:
                    with context.shield():
                        context.step(shielded)
                    context.step(after)

        pk = stage.start(body)
        stage.run()
        assert stage.status(pk) is Status.CANCELLED
        assert (undo.calls, shielded.calls, after.calls) == (1, 1, 0)


def test_atomic_step_whose_commit_got_no_answer_runs_once(
    stage: WorkflowStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Counting("work", 7)

    def body(context: WorkflowContext) -> int:
        return int(context.step(step(atomic=True)(work)))

    @contextmanager
    def commit_without_answer(**options: Any) -> Iterator[None]:
        with transaction.atomic(**options):
            yield
        if options.get("using") == stage.database and work.calls:
            raise OperationalError("the connection is gone")

    monkeypatch.setattr(workflow_runner, "transaction", SimpleNamespace(atomic=commit_without_answer))
    pk = stage.play(body)
    assert (stage.status(pk), work.calls) == (Status.SCHEDULED, 1)
    stage.pass_time(60)
    assert stage.result(pk) == 7
    assert work.calls == 1
