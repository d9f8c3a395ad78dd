"""Workflows in a running executor."""

from __future__ import annotations

from datetime import timedelta

import pytest

import jobqueue
from jobqueue import WorkflowContext
from jobqueue.values.states import Status
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
    step = Counting("work")

    def body(context: WorkflowContext) -> str:
        first = context.step(step, 1)
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
    assert step.calls == 1
