"""The same orders on engines that are deliberately broken: each is caught, or the stepper proves nothing."""

import pytest

from jobqueue.engine.postgresql import PostgresEngine
from tests.interleavings import invariants, mutants
from tests.interleavings.conftest import Run
from tests.interleavings.scenarios import SCENARIOS

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("mutant", "scenario", "invariant"),
    [
        (mutants.WakesWithoutLocking, "send-x-suspend", invariants.LOST_WAKE_UP),
    ],
)
def test_a_broken_engine_is_caught(run: Run, mutant: type[PostgresEngine], scenario: str, invariant: str) -> None:
    failure = run(SCENARIOS[scenario], mutant).failure
    assert failure is not None, f"{mutant.__name__} was not caught"
    assert any(problem.startswith(invariant) for problem in failure.problems), failure.problems
