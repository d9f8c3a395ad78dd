"""Every deliberately broken engine fails at least one order. This shows that the races detect errors."""

from collections.abc import Callable

import pytest

from verification.interleavings import mutants
from verification.interleavings.cases import report
from verification.interleavings.conftest import Run
from verification.interleavings.mutant_cases import CAUGHT_BY_RACES, MutantCase
from verification.interleavings.orders import OrderPlan

pytestmark = pytest.mark.django_db  # other processes use the database


@pytest.mark.parametrize("case", CAUGHT_BY_RACES, ids=[case.name for case in CAUGHT_BY_RACES])
def test_race_detects_broken_engine(run: Run, record_property: Callable[[str, object], None], case: MutantCase) -> None:
    explored = run(case.by, case.kind, OrderPlan(is_sample_only=case.is_sample_only))
    assert explored.failure is not None, f"{case.kind.__name__} was not caught"
    assert any(problem.startswith(case.problem) for problem in explored.failure.problems), explored.failure.problems
    record_property("caught", case.cells(explored.count))  # shown at the end of the test run


def test_failed_order_is_reported_and_repeatable(run: Run) -> None:
    race = ("send-x-suspend", mutants.WakesWithoutLocking)
    first = run(*race, OrderPlan())
    assert first.failure is not None
    text = report(first, race)
    assert f"JOBQUEUE_ORDER={first.failure.labels} python -m pytest 'verification/interleavings/" in text

    again = run(*race, OrderPlan(labels=first.failure.labels))

    assert again.failure is not None
    assert again.count == 1
    assert again.failure.problems == first.failure.problems
