"""Workflows go on after what people do with their journals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import jobqueue
from jobqueue import Backoff, StepFailed, WorkflowContext, step
from jobqueue.api import workflows as changes
from jobqueue.exceptions import ChangeRefused
from jobqueue.values.states import Status
from tests.workflow import workflows
from tests.workflow.stage import Counting, WorkflowStage
from tests.workflow.workflows import Shipped

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

patient = step(max_attempts=2, backoff=Backoff(base=3000.0, jitter=0.0))
once = step(max_attempts=1)


def test_retried_step_runs_before_its_backoff_ends(stage: WorkflowStage) -> None:
    work = Counting("work", "done", errors=1)
    pk = stage.play(lambda context: context.step(patient(work)))

    changes.retry(pk, "work")
    stage.run()

    assert (stage.result(pk), work.calls) == ("done", 2)


@pytest.mark.parametrize("decorate", [patient, once])
def test_result_by_hand_replaces_the_step(stage: WorkflowStage, decorate: object) -> None:
    work, after = Counting("work", errors=9), Counting("after")
    decorated = decorate(work)  # type: ignore[operator]
    pk = stage.play(lambda context: context.step(after, context.step(decorated)))

    changes.give(pk, "work", "by hand")
    stage.run()

    assert (stage.result(pk), work.calls) == ("by hand", 1)


def test_skipped_waits_end(stage: WorkflowStage) -> None:
    def body(context: WorkflowContext) -> str:
        context.sleep(timedelta(days=3))
        return repr(context.receive(Shipped))

    pk = stage.play(body)

    changes.skip(pk, "sleep")
    stage.run()
    assert stage.status(pk) is Status.SUSPENDED
    changes.skip(pk, "receive")
    stage.run()

    assert stage.result(pk) == "None"


def test_skipped_wait_for_children_returns_those_that_have_ended(stage: WorkflowStage) -> None:
    def body(context: WorkflowContext) -> list[Any]:
        quick, slow = context.spawn(workflows.pack, 1), context.spawn(workflows.later, 3600)
        ended = context.wait(quick, slow, count=2)
        context.sleep(timedelta(hours=2))
        return [context.gather(*ended), context.gather(quick, slow)]

    pk = stage.play(body)
    changes.skip(pk, "wait")
    stage.run()
    stage.pass_time(2 * 3600)
    assert stage.result(pk) == [[10], [10, 7200]]
    assert stage.journal(pk)["wait"] == "TIMED_OUT"


def test_rewound_workflow_runs_again_from_the_entry(stage: WorkflowStage) -> None:
    first, second = Counting("first", 1), Counting("second", 2)

    def body(context: WorkflowContext) -> int:
        total = int(context.step(first) + context.step(second))
        context.sleep(timedelta(days=3))
        return total

    pk = stage.play(body)
    changes.rewind(pk, "second")
    stage.run()
    stage.pass_time(3 * 86400 + 1)

    assert stage.result(pk) == 3
    assert (first.calls, second.calls) == (1, 2)


def test_cancel_runs_compensations_and_terminate_does_not(stage: WorkflowStage) -> None:
    undone = Counting("undone")

    def body(context: WorkflowContext) -> None:
        with context.compensate(undone):
            context.receive(Shipped)

    cancelled, terminated = stage.play(body), stage.play(body)

    assert changes.terminate(terminated).cancelled == 1
    assert jobqueue.cancel(cancelled).requested == 1
    stage.run()

    assert (stage.status(cancelled), stage.status(terminated)) == (Status.CANCELLED, Status.CANCELLED)
    assert undone.calls == 1


@pytest.mark.parametrize("change", [changes.retry, lambda pk, name: changes.give(pk, name, 1)], ids=["retry", "give"])
def test_step_of_a_block_that_was_undone_runs_no_more(
    stage: WorkflowStage, change: Callable[[UUID, str], None]
) -> None:
    ship, other = Counting("ship", errors=1), Counting("other", errors=1)

    def body(context: WorkflowContext) -> None:
        with suppress(StepFailed), context.compensate(Counting("undo")):
            context.step(once(ship))
        context.step(once(other))

    pk = stage.play(body)
    with pytest.raises(ChangeRefused, match=r"The compensation undo has run; rewind to it, or to an earlier entry\."):
        change(pk, "ship")
    change(pk, "other")  # after the block
    stage.run()
    assert (stage.status(pk), ship.calls) == (Status.SUCCESSFUL, 1)
