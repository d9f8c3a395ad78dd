"""A deploy puts a call in front of what a workflow has done, and the workflow is cancelled. Nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import jobqueue
from jobqueue import WorkflowContext
from tests.workflow import members, workflows
from tests.workflow.stage import Counting, WorkflowStage, bodies

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

SECOND = timedelta(seconds=1)


def wrap(context: WorkflowContext) -> None:
    with context.shield():
        context.step(Counting("wrap"))


NEW_CALLS: dict[str, Callable[[WorkflowContext], Any]] = {
    "patched": lambda context: context.patched("gift-wrap"),
    "step": lambda context: context.step(Counting("wrap")),
    "value": lambda context: context.uuid(),
    "child": lambda context: context.step(members.work, 1),
    "wait for a message": lambda context: context.receive(str, timeout=SECOND),
    "shield": wrap,
}


@pytest.mark.parametrize("new", NEW_CALLS.values(), ids=NEW_CALLS)
def test_cancel_at_new_call_before_open_compensation_runs_it(
    stage: WorkflowStage, new: Callable[[WorkflowContext], Any]
) -> None:
    charge, refund = Counting("charge"), Counting("refund")

    def old_code(context: WorkflowContext) -> None:
        context.step(charge)
        with context.compensate(refund):
            context.gather(context.spawn(workflows.fib.using(run_after=timedelta(days=1)), 1))

    def new_code(context: WorkflowContext) -> None:
        new(context)
        old_code(context)

    pk = deployed(stage, old_code, new_code)
    jobqueue.cancel(pk)
    stage.run()
    stage.pass_time(2)

    assert stage.status(pk) == "CANCELLED"
    assert stage.journal(pk)["refund"] == "SUCCESSFUL"
    assert (charge.calls, refund.calls) == (1, 1)


def test_cancel_at_new_call_before_open_shield_lets_it_end(stage: WorkflowStage) -> None:
    charge, book, ship = Counting("charge"), Counting("book"), Counting("ship")

    def old_code(context: WorkflowContext) -> None:
        with context.shield():
            context.step(charge)
            context.sleep(SECOND)
            context.step(book)
        context.step(ship)

    def new_code(context: WorkflowContext) -> None:
        context.step(Counting("wrap"))
        old_code(context)

    pk = deployed(stage, old_code, new_code)
    jobqueue.cancel(pk)
    stage.run()
    stage.pass_time(2)

    assert stage.status(pk) == "CANCELLED"
    assert (charge.calls, book.calls, ship.calls) == (1, 1, 0)


def test_cancelled_workflow_with_a_renamed_compensation_fails_visibly(stage: WorkflowStage) -> None:
    refund, refund_all = Counting("refund"), Counting("refund_all")

    def old_code(context: WorkflowContext) -> None:
        with context.compensate(refund):
            context.sleep(SECOND)

    def new_code(context: WorkflowContext) -> None:
        with context.compensate(refund_all):
            context.sleep(SECOND)

    pk = deployed(stage, old_code, new_code)
    jobqueue.cancel(pk)
    stage.pass_time(2)

    assert stage.status(pk) == "FAILED"
    assert "this code has not reached refund, which earlier code has left open" in stage.error(pk)

    bodies[stage.row(pk).args[0]] = old_code
    jobqueue.requeue(pk)
    jobqueue.cancel(pk)
    stage.run()

    assert (refund.calls, refund_all.calls) == (0, 0)
    assert stage.status(pk) == "SUCCESSFUL"


def test_cancel_between_step_and_patched_runs_the_compensation_behind_it(stage: WorkflowStage) -> None:
    """patched() asks about the code. Like compensate() itself, it is no place to stop at."""
    refund = Counting("refund")

    def body(context: WorkflowContext) -> None:
        with context.shield():
            context.sleep(SECOND)
        assert context.patched("refunds")
        with context.compensate(refund):
            context.step(Counting("ship"))

    pk = stage.play(body)
    jobqueue.cancel(pk)
    stage.pass_time(2)

    assert stage.status(pk) == "CANCELLED"
    assert refund.calls == 1


def deployed(stage: WorkflowStage, old_code: Any, new_code: Any) -> Any:
    """Run the old code until it waits, and replace it by the new one."""
    pk = stage.play(old_code)
    bodies[stage.row(pk).args[0]] = new_code
    return pk
