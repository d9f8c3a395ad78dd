"""The same orders on engines that are deliberately broken: each is caught, or the stepper proves nothing."""

from collections.abc import Callable

import pytest

from verification.interleavings import mutants
from verification.interleavings.cases import report
from verification.interleavings.catches import BY_ORDERS, Catch
from verification.interleavings.conftest import Run
from verification.interleavings.orders import Plan

pytestmark = pytest.mark.django_db  # the database; what happens there happens in other processes


@pytest.mark.parametrize("catch", BY_ORDERS, ids=[catch.name for catch in BY_ORDERS])
def test_a_broken_engine_is_caught(run: Run, record_property: Callable[[str, object], None], catch: Catch) -> None:
    caught = run(catch.by, catch.kind, Plan())
    assert caught.failure is not None, f"{catch.kind.__name__} was not caught"
    assert any(problem.startswith(catch.problem) for problem in caught.failure.problems), caught.failure.problems
    record_property("caught", catch.cells(caught.count))  # for the summary of the session


def test_a_failing_order_is_told_and_repeated(run: Run) -> None:
    case = ("send-x-suspend", mutants.WakesWithoutLocking)
    first = run(*case, Plan())
    assert first.failure is not None
    story = report(first, case)
    assert f"JOBQUEUE_ORDER={first.failure.letters} python -m pytest 'verification/interleavings/" in story

    again = run(*case, Plan(letters=first.failure.letters))

    assert again.failure is not None
    assert again.count == 1
    assert again.failure.problems == first.failure.problems
