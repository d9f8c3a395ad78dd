"""Every order of two connections, or many, on the real server: what must hold holds."""

import pytest

from tests.interleavings.conftest import Run, report
from tests.interleavings.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_any_order_is_right(run: Run, scenario: Scenario) -> None:
    explored = run(scenario)
    assert explored.failure is None, report(explored, scenario.name)
