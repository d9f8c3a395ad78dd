"""Workflows in a running executor."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import jobqueue
from jobqueue import StepFailed, WorkflowContext, step
from jobqueue.exceptions import TaskCancelled
from jobqueue.executor.running.attempt import running_here
from jobqueue.values.states import FINAL, Status
from tests.executor.conftest import burst as burst
from tests.executor.conftest import start as start
from tests.executor.harness import Start
from tests.waiting import wait_until
from tests.workflow import workflows
from tests.workflow.stage import Counting, WorkflowStage
from tests.workflow.workflows import Shipped

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def transactional(transactional_db: None) -> None: ...


def test_workflow_runs_steps_waits_and_children(stage: WorkflowStage, start: Start) -> None:
    work = Counting("work")

    def body(context: WorkflowContext) -> str:
        first = context.step(work, 1)
        context.sleep(timedelta(milliseconds=50))
        packed = context.gather(*(context.spawn(workflows.pack, number) for number in range(5)))
        shipped = context.receive(Shipped)
        return f"{first} {sum(packed)} {shipped.tracking}"

    start()
    pk = stage.start(body)
    wait_until(lambda: "receive" in stage.journal(pk), "the wait for a message")
    jobqueue.send(pk, Shipped("T1"))
    wait_until(lambda: stage.status(pk) is Status.SUCCESSFUL, "the end of the workflow")
    assert stage.result(pk) == "1 100 T1"
    assert work.calls == 1


def test_step_that_takes_too_long_fails_with_a_timeout(stage: WorkflowStage, start: Start) -> None:
    @step(timeout=0.2, max_attempts=1)
    def slow() -> None:
        wait_until(lambda: False, "an interruption")

    def body(context: WorkflowContext) -> str:
        try:
            context.step(slow)
        except StepFailed as failed:
            return str(context.step(Counting("after"), failed.error["message"]))
        return "in time"

    start()
    pk = stage.start(body)
    wait_until(lambda: stage.status(pk) is Status.SUCCESSFUL, "the end of the workflow")
    assert stage.result(pk) == "It ran longer than 0.2 s."
    assert stage.journal(pk) == {"slow": "FAILED", "after": "SUCCESSFUL"}


def test_async_step_that_takes_too_long_fails_with_a_timeout(stage: WorkflowStage, start: Start) -> None:
    @step(timeout=0.05, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    start()
    pk = stage.start(lambda context: context.step(slow))
    wait_until(lambda: stage.status(pk) is Status.FAILED, "the end of the workflow")
    assert "TimeoutError" in stage.error(pk)


def test_step_of_a_cancelled_workflow_keeps_its_timeout(stage: WorkflowStage, start: Start) -> None:
    undo = Counting("undo")

    @step(timeout=0.3, max_attempts=1)
    def slow() -> None:
        jobqueue.cancel(pk)
        running = running_here.get()
        assert running is not None
        running.interrupt(TaskCancelled)  # as the next heartbeat does
        wait_until(lambda: False, "an interruption", seconds=5.0)

    def body(context: WorkflowContext) -> None:
        with context.compensate(undo):
            context.step(slow)

    pk = stage.start(body)
    start()
    wait_until(lambda: stage.status(pk) in FINAL, "the end of the workflow")
    assert undo.calls == 1
    assert stage.journal(pk)["slow"] == "FAILED"
    assert "It ran longer than 0.3 s." in stage.error(pk)
