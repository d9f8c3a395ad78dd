"""The stepper after an error of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from django.db import transaction

from jobqueue.models import Task
from tests.factories import TaskFactory
from verification.interleavings.stepper import Client, Stepper


@pytest.fixture
def stepper(transactional_db: None) -> Iterator[Stepper]:
    stepper = Stepper(2)
    yield stepper
    stepper.close()


def test_error_leaves_no_client_in_its_transaction(stepper: Stepper) -> None:
    task = TaskFactory.create()

    def lock() -> None:
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=task.pk)

    def choose(runnable: Sequence[Client]) -> Client:
        if runnable[0].before == "COMMIT":
            raise LookupError("no such step")
        return runnable[0]

    with pytest.raises(LookupError):
        stepper.run([lock, lock], choose)

    with transaction.atomic():
        assert Task.objects.select_for_update(nowait=True).get(pk=task.pk) == task
    assert len(stepper.run([lock, lock], lambda runnable: runnable[0]).steps) == 4
