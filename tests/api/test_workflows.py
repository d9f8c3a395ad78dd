"""jobqueue.api.workflows: what people do with a workflow, in whichever backend it is."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from jobqueue.api import workflows
from jobqueue.exceptions import ChangeRefused, InvalidArguments, TaskNotFound
from jobqueue.models import JournalEntry, Task
from jobqueue.values.changes import CancelReport
from tests.factories import TaskFactory

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(params=["default", "sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def workflow(backend: str, kind: str, entry_status: str, **columns: Any) -> UUID:
    """Return a SUSPENDED workflow with one entry."""
    values = {"status": Task.Status.SUSPENDED, "backend": backend, "using": backend, "claim_number": 1} | columns
    task = TaskFactory.create(**values)
    JournalEntry.objects.using(backend).create(task_id=task.pk, name="charge", kind=kind, status=entry_status)
    return UUID(str(task.pk))


def read(backend: str, pk: UUID) -> tuple[str, JournalEntry | None]:
    entry = JournalEntry.objects.using(backend).filter(task_id=pk).first()
    return Task.objects.using(backend).get(pk=pk).status, entry


def test_given_result_is_found_in_each_backend(backend: str) -> None:
    pk = workflow(backend, "STEP", "RETRYING")

    workflows.give(str(pk), "charge", {"id": 7})

    status, entry = read(backend, pk)
    assert entry is not None
    assert (status, entry.status, entry.value) == (Task.Status.READY, "SUCCESSFUL", {"id": 7})


def test_retry_skip_and_rewind_change_the_journal(backend: str) -> None:
    step, sleep, other = (
        workflow(backend, "STEP", "RETRYING"),
        workflow(backend, "SLEEP", "WAITING"),
        workflow(backend, "STEP", "SUCCESSFUL"),
    )

    workflows.retry(step, "charge", backend=backend)
    workflows.skip(sleep, "charge")
    workflows.rewind(other, "charge")

    entries = [read(backend, pk)[1] for pk in (step, sleep, other)]
    assert [entry and entry.status for entry in entries] == ["RETRYING", "SKIPPED", None]
    assert {read(backend, pk)[0] for pk in (step, sleep, other)} == {Task.Status.READY}


def test_terminate_ends_a_running_workflow_with_an_open_compensation(backend: str) -> None:
    pk = workflow(backend, "COMPENSATION", "WAITING", status=Task.Status.RUNNING, executor_id=uuid4())

    assert workflows.terminate(pk) == CancelReport(cancelled=1)

    assert read(backend, pk)[0] == Task.Status.CANCELLED


def test_change_of_an_unknown_task_names_it() -> None:
    pk = uuid4()
    with pytest.raises(TaskNotFound, match=str(pk)):
        workflows.retry(pk, "charge")


def test_value_that_is_no_json_is_refused_before_any_change(backend: str) -> None:
    pk = workflow(backend, "STEP", "RETRYING")

    with pytest.raises(InvalidArguments, match=r"value: .*set"):
        workflows.give(pk, "charge", {1})

    assert read(backend, pk)[0] == Task.Status.SUSPENDED


def test_refusal_is_one_sentence(backend: str) -> None:
    pk = workflow(backend, "STEP", "SUCCESSFUL")

    with pytest.raises(ChangeRefused, match=r"^charge was successful; rewind to it to run it again\.$"):
        workflows.retry(pk, "charge")
