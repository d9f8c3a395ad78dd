"""Steps that end at about the same time are recorded together, and none of them can stop the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from jobqueue import WorkflowContext
from jobqueue.engine.journal import Journals
from jobqueue.exceptions import TaskTimeout
from jobqueue.values.states import Status
from tests.engine.sessions import session
from tests.executor.conftest import burst as burst
from tests.executor.conftest import start as start
from tests.executor.harness import Start, gates
from tests.waiting import wait_until
from tests.workflow.stage import WorkflowStage

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
WORKFLOWS, STEPS = 4, 5


@pytest.fixture(autouse=True)
def transactional(transactional_db: None) -> None: ...


@pytest.fixture
def batches() -> Iterator[list[list[UUID]]]:
    """The workflows of each transaction that recorded steps together."""
    written: list[list[UUID]] = []
    record_steps = Journals.record_steps

    def watched(journals: Journals, executor_id: UUID, records: Any) -> dict[UUID, bool]:
        asked = record_steps(journals, executor_id, records)
        written.append([*asked])
        return asked

    with patch.object(Journals, "record_steps", watched):
        yield written


def add_one(total: int) -> int:
    return total + 1


def count_up(context: WorkflowContext) -> int:
    total = 0
    for _ in range(STEPS):
        total = context.step(add_one, total)
    return total


def ended(stage: WorkflowStage, ids: list[UUID]) -> bool:
    return all(stage.status(pk) is Status.SUCCESSFUL for pk in ids)


def test_steps_that_wait_for_a_commit_share_the_next_one(
    stage: WorkflowStage, start: Start, batches: list[list[UUID]]
) -> None:
    ids = [stage.start(count_up) for _ in range(WORKFLOWS + 1)]
    record_steps = Journals.record_steps

    def held_back(journals: Journals, executor_id: UUID, records: Any) -> dict[UUID, bool]:
        gates["commit"].pass_through(len(records))
        return record_steps(journals, executor_id, records)

    with patch.object(Journals, "record_steps", held_back):
        recorder = start(threads=WORKFLOWS + 1).process._recorder
        (first, *_) = gates["commit"].wait_for()
        wait_until(lambda: first + recorder._queue.qsize() == len(ids), "steps that wait for the first commit")
        gates["commit"].open()
        wait_until(lambda: ended(stage, ids), "the end of the workflows")

    assert [stage.result(pk) for pk in ids] == [STEPS] * len(ids)
    assert len(batches[0]) == first
    assert len(batches[1]) == len(ids) - first or first == len(ids)
    assert sum(map(len, batches)) == STEPS * len(ids)


def test_step_of_a_locked_workflow_delays_no_other(stage: WorkflowStage, start: Start) -> None:
    if stage.database == "sqlite":
        pytest.skip("SQLite has no locks of rows")

    def wait_and_count(context: WorkflowContext) -> int:
        context.step(hold, "locked")
        return count_up(context)

    locked = stage.start(wait_and_count)
    start(threads=2)
    gates["locked"].wait_for()
    with session() as other:
        other.run(f"SELECT 1 FROM jobqueue_task WHERE id = '{locked}' FOR UPDATE")
        gates["locked"].open()
        free = stage.start(count_up)
        wait_until(lambda: ended(stage, [free]), "the end of the workflow that is not locked")
        assert stage.journal(locked) == {}
        other.run("ROLLBACK")
    wait_until(lambda: ended(stage, [locked]), "the end of the workflow that was locked")


def hold(gate: str) -> None:
    gates[gate].pass_through()


def test_workflow_goes_on_without_the_recorder(stage: WorkflowStage, start: Start, batches: list[list[UUID]]) -> None:
    pk = stage.start(count_up)

    start(prepare=lambda running: running.process._recorder.stop())

    wait_until(lambda: ended(stage, [pk]), "the end of the workflow")
    assert batches == []


@pytest.mark.parametrize("cause", ["copy", "error"])
def test_records_that_cannot_be_written_together_are_written_alone(
    stage: WorkflowStage, start: Start, batches: list[list[UUID]], cause: str
) -> None:
    def prepare(running: Any) -> None:
        if cause == "copy":
            running.process._recorder._pid = os.getpid() + 1
        else:
            running.process._recorder._executor_id = "no uuid"

    pk = stage.start(count_up)
    start(prepare=prepare)

    wait_until(lambda: ended(stage, [pk]), "the end of the workflow")
    assert stage.result(pk) == STEPS
    assert batches == []


def test_interrupted_body_leaves_the_recorder_to_others(stage: WorkflowStage, start: Start) -> None:
    record_steps = Journals.record_steps

    def held_back(journals: Journals, executor_id: UUID, records: Any) -> dict[UUID, bool]:
        gates["commit"].pass_through(len(records))
        return record_steps(journals, executor_id, records)

    with patch.object(Journals, "record_steps", held_back):
        interrupted = stage.start(count_up, timeout=0.5, max_attempts=1)
        running = start(threads=2)
        gates["commit"].wait_for()
        (task,) = running.running_tasks.values()
        wait_until(lambda: task.reason is TaskTimeout, "the interruption of the body that waits")
        other = stage.start(count_up)
        gates["commit"].open()
        wait_until(lambda: ended(stage, [other]), "the end of the other workflow")
    wait_until(lambda: stage.status(interrupted) is Status.FAILED, "the end of the interrupted workflow")
