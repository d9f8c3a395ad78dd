"""Steps and waits of workflows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import jobqueue
from jobqueue import WorkflowContext, testing
from jobqueue.conf.compat import task_enqueued
from jobqueue.engine import engine_for
from jobqueue.executor.running.workflow_runner import WorkflowRun
from jobqueue.models import InboxMessage
from jobqueue.values.states import Status
from tests.executor.harness import connected
from tests.workflow import workflows
from tests.workflow.stage import Counting, WorkflowStage
from tests.workflow.workflows import CancelOrder, Shipped

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def empty() -> None:
    workflows.charges.clear()
    workflows.refunds.clear()


def test_checkout_of_the_documentation_runs_to_its_receipt(stage: WorkflowStage) -> None:
    result = workflows.checkout.enqueue(42, [1, 2])
    stage.run()
    pk = UUID(result.id)
    assert stage.status(pk) is Status.SUSPENDED
    assert stage.row(pk).key == "order-42"

    stage.send_and_run("order-42", Shipped("T1"))
    assert stage.result(pk) == {"tracking": "T1", "weight": 30}
    assert workflows.charges == [42]
    assert workflows.refunds == []
    assert stage.journal(pk) == {
        "charge_card": "SUCCESSFUL",
        "refund": "SKIPPED",
        "receive": "SUCCESSFUL",
        "pack": "SUCCESSFUL",
        "pack#2": "SUCCESSFUL",
    }


def test_children_of_a_workflow_return_their_results(stage: WorkflowStage) -> None:
    result = workflows.fib.enqueue(7)
    stage.run()
    assert stage.result(UUID(result.id)) == 13


def test_recorded_step_never_runs_again(stage: WorkflowStage) -> None:
    step = Counting("work", 5)
    runs = []

    def body(context: WorkflowContext) -> int:
        runs.append(1)
        result = int(context.step(step))
        context.sleep(timedelta(hours=1))
        return result + int(context.step(step))

    pk = stage.play(body)
    assert (stage.status(pk), step.calls) == (Status.SUSPENDED, 1)
    stage.pass_time(3000)
    assert len(runs) == 1
    stage.pass_time(700)
    assert stage.result(pk) == 10
    assert (len(runs), step.calls) == (2, 2)
    assert list(stage.journal(pk)) == ["work", "sleep", "work#2"]


def test_receive_returns_none_after_its_timeout_in_each_run(stage: WorkflowStage) -> None:
    def body(context: WorkflowContext) -> str:
        first = context.receive(Shipped, timeout=timedelta(minutes=1))
        second = context.receive(Shipped)
        return f"{first} {second.tracking}"

    pk = stage.play(body)
    stage.pass_time(61)
    stage.send_and_run(pk, Shipped("late"))
    assert stage.result(pk) == "None late"
    assert stage.journal(pk) == {"receive": "TIMED_OUT", "receive#2": "SUCCESSFUL"}


def test_receive_leaves_messages_of_other_types_for_later_calls(stage: WorkflowStage) -> None:
    runs = []

    def body(context: WorkflowContext) -> list[str]:
        runs.append(1)
        shipped = context.receive(Shipped)
        cancel = context.receive(CancelOrder)
        return [shipped.tracking, cancel.reason]

    pk = stage.play(body)
    stage.send_and_run(pk, CancelOrder("changed my mind"))
    assert (stage.status(pk), len(runs)) == (Status.SUSPENDED, 1)
    assert stage.unread(pk) == [{"type": "CancelOrder", "reason": "changed my mind"}]
    stage.send_and_run(pk, {"type": "Shipped", "tracking": "T1"})
    assert stage.result(pk) == ["T1", "changed my mind"]
    assert stage.unread(pk) == []


def test_many_children_run_the_body_twice(stage: WorkflowStage) -> None:
    runs = []

    def body(context: WorkflowContext) -> int:
        runs.append(1)
        return sum(context.gather(*(context.spawn(workflows.pack, number) for number in range(50))))

    pk = stage.play(body)
    assert stage.result(pk) == 10 * sum(range(50))
    assert len(runs) == 2


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
def test_ends_of_children_cost_a_bounded_number_of_statements(stage: WorkflowStage, together: bool) -> None:
    """The body runs twice, and a poll that folds any number of ends needs as many statements as one that folds one."""

    def statements(children: int) -> list[int]:
        """Return the number of statements of each poll after the first one."""
        runs, polls = [], []

        def body(context: WorkflowContext) -> int:
            runs.append(1)
            return sum(context.gather(*[context.spawn(workflows.pack, number) for number in range(children)]))

        pk = stage.start(body)
        testing.poll_once(pk)
        for child in stage.children(pk):
            testing.poll_once(child)
            if not together or child == stage.children(pk)[-1]:
                with CaptureQueriesContext(connections[stage.database]) as captured:
                    testing.poll_once(pk)
                polls.append(len(captured))
        assert (stage.result(pk), len(runs)) == (10 * sum(range(children)), 2)
        return polls

    statements(2)  # prepares them
    *few, last = statements(3)
    *many, last_of_many = statements(8)
    assert (set(many), last_of_many) == (set(few), last)
    assert len(many) == (0 if together else 7)


def test_wait_returns_the_first_child_that_has_ended(stage: WorkflowStage) -> None:
    def body(context: WorkflowContext) -> list[int]:
        slow = context.spawn(workflows.later, 60)
        quick = context.spawn(workflows.pack, 4)
        first = context.wait(slow, quick)
        return [*context.gather(*first), *context.gather(slow)]

    pk = stage.play(body)
    assert stage.journal(pk)["wait"] == "SUCCESSFUL"
    stage.pass_time(61)
    assert stage.result(pk) == [40, 120]


def test_reply_reaches_the_sender(stage: WorkflowStage) -> None:
    def asked(context: WorkflowContext) -> None:
        context.reply({"answer": context.receive(int) + 1})

    def asking(context: WorkflowContext) -> int:
        context.send(answering, 41)
        return int(context.receive(dict)["answer"])

    answering = stage.play(asked)
    pk = stage.play(asking)
    assert stage.result(pk) == 42


def test_message_to_an_ended_task_raises_in_each_run(stage: WorkflowStage) -> None:
    ended = stage.play(lambda context: None)

    def body(context: WorkflowContext) -> str:
        try:
            context.send(ended, 1)
        except jobqueue.TaskFinished:
            context.sleep(timedelta(seconds=1))
            return "ended"
        return "sent"

    pk = stage.play(body)
    stage.pass_time(2)
    assert stage.result(pk) == "ended"


def test_values_are_the_same_in_each_run(stage: WorkflowStage) -> None:
    seen = []

    def body(context: WorkflowContext) -> None:
        seen.append((context.now(), context.uuid(), context.random(), context.uuid()))
        context.sleep(timedelta(seconds=1))

    stage.play(body)
    stage.pass_time(2)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1] != seen[0][3]


@pytest.mark.parametrize("choice", ["now", "uuid", "random", "receive", "spawn"])
def test_step_gets_the_same_values_after_its_record_was_lost(
    stage: WorkflowStage, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """An executor may die between the call of a step, say of a payment, and its record."""
    seen, record, errors = list[str](), WorkflowRun.record, [OperationalError("the server stops")]

    def charge(value: str) -> None:
        seen.append(value)

    def fail_once(run: WorkflowRun, entries: Any, effects: Any) -> None:
        if seen and errors:
            raise errors.pop()
        record(run, entries, effects)

    def body(context: WorkflowContext) -> None:
        match choice:
            case "receive":
                value: object = context.receive(Shipped).tracking
            case "spawn":
                value = context.spawn(workflows.pack, 1).id
            case _:
                value = getattr(context, choice)()
        context.step(charge, str(value))

    monkeypatch.setattr(WorkflowRun, "record", fail_once)
    pk = stage.start(body)
    jobqueue.send(pk, Shipped("T1"))
    stage.run()
    stage.pass_time(11)
    assert stage.status(pk) is Status.SUCCESSFUL
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_time_that_a_test_lets_pass_moves_the_clock_of_workflows(stage: WorkflowStage) -> None:
    def body(context: WorkflowContext) -> list[float]:
        begun = context.now()
        context.sleep(timedelta(days=3))
        slept = context.now()
        context.sleep_until(slept + timedelta(days=2))
        return [(slept - begun).total_seconds(), (context.now() - begun).total_seconds()]

    later = stage.start(lambda context: context.now().isoformat(), run_after=timedelta(days=4))
    before = timezone.now()
    pk = stage.play(body)
    stage.pass_time(3 * 86400 + 1)
    stage.pass_time(86400)
    assert stage.status(pk) is Status.SUSPENDED
    stage.pass_time(86400 + 1)
    assert [round(seconds / 86400, 2) for seconds in stage.result(pk)] == [3.0, 5.0]
    assert 4 <= (datetime.fromisoformat(stage.result(later)) - before) / timedelta(days=1) < 4.1


def test_message_of_a_slow_transaction_is_found_beside_unread_ones(stage: WorkflowStage) -> None:
    """It has no wake-up: SQL has sent it before the last run, and committed after it."""
    pk = stage.play(lambda context: context.receive(Shipped).tracking)
    stage.send_and_run(pk, CancelOrder("changed my mind"))
    rows = InboxMessage.objects.using(stage.database)
    rows.create(task_id=pk, body={"type": "Shipped", "tracking": "T1"}, sent_at=timezone.now() - timedelta(hours=1))
    stage.pass_time(3600)
    assert stage.result(pk) == "T1"


@pytest.mark.parametrize("raises", [False, True])
def test_plain_code_around_a_wait_cannot_swallow_it(stage: WorkflowStage, raises: bool) -> None:
    def body(context: WorkflowContext) -> str:
        try:
            context.sleep(timedelta(seconds=5))
        except BaseException as error:
            if raises:
                raise RuntimeError("swallowed") from error
            return "swallowed"
        return "slept"

    pk = stage.play(body)
    assert stage.status(pk) is Status.SUSPENDED
    stage.pass_time(6)
    assert stage.result(pk) == "slept"


def test_workflow_that_never_waited_keeps_a_state_for_retention(stage: WorkflowStage) -> None:
    """prune() finds its journal by the state."""
    pk = stage.play(lambda context: context.step(Counting("work")))
    assert stage.row(pk).inner_state is not None
    stage.change(pk, finished_at=timezone.now() - timedelta(days=400))
    engine_for("default").tasks.prune()
    assert stage.journal(pk) == {}


def test_children_of_a_step_are_announced_as_others_are(stage: WorkflowStage) -> None:
    enqueued = []

    def receive(task_result: Any, **_: Any) -> None:
        enqueued.append(task_result.task.name)

    def body(context: WorkflowContext) -> None:
        context.spawn(workflows.pack, 1)
        context.step(Counting("work"))
        context.spawn(workflows.fib, 1)

    pk = stage.start(body)
    with connected(receive, task_enqueued):
        stage.run()
    assert stage.status(pk) is Status.SUCCESSFUL
    assert enqueued == ["pack", "fib"]
