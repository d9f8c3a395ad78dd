"""`context.progress()`: what a body reports, while it runs and after its end."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue import testing
from jobqueue.declarations.actor import Actor
from jobqueue.declarations.context import checked_progress
from jobqueue.models import TaskProgress
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Burst, Start, database_of, gates, on_both_databases, on_postgresql, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql


def progress_of(result: Any) -> TaskProgress | None:
    return TaskProgress.objects.using(database_of(result)).filter(pk=result.id).first()


@pytest.mark.parametrize("body", [tasks.report_progress, tasks.report_progress_later])
def test_progress_is_written_while_the_body_runs_and_at_its_end(start: Start, body: Any) -> None:
    result = body.enqueue("reporting")
    start()

    first = wait_until(lambda: progress_of(result), "the first report")
    gates["reporting"].open()
    assert (first.done, first.total, first.note, first.claim_number) == (1, 4, "first", 1)

    wait_for_status(result, Status.SUCCESSFUL)
    wait_until(lambda: (row := progress_of(result)) is not None and row.done == 2.5, "the last report")
    last = progress_of(result)
    assert last is not None
    assert last.note == "x" * 200


@on_both_databases
def test_last_progress_of_a_burst_is_written(burst: Burst, backend: str) -> None:
    gates["open"].open()
    result = tasks.report_progress.using(backend=backend).enqueue("open")

    burst(backend=backend)

    row = progress_of(result)
    assert row is not None
    assert row.done == 2.5


@pytest.mark.parametrize(
    ("values", "error"),
    [(("1", None), TypeError), ((True, None), TypeError), ((-1, None), ValueError), ((1, float("nan")), ValueError)],
)
def test_progress_refuses_what_is_no_number(values: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"progress\(\) takes a"):
        checked_progress(values[0], values[1], "")


def test_progress_of_a_context_made_by_hand_does_nothing() -> None:
    class Quiet(Actor, abstract=True):
        pass

    testing.context(Quiet).progress(1, 2)
