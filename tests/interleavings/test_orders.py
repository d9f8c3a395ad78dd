"""Every order of two connections, or many, on the real server: what must hold holds."""

import pytest

from jobqueue.engine.base import Engine
from jobqueue.engine.postgresql import PostgresEngine
from tests.interleavings.conftest import Run, report
from tests.interleavings.scenarios import ON_PORTABLE, SCENARIOS

pytestmark = pytest.mark.django_db  # the database; what happens there happens in other processes

CASES = [(name, PostgresEngine) for name in SCENARIOS] + [(name, Engine) for name in ON_PORTABLE]


@pytest.mark.parametrize(("scenario", "kind"), CASES, ids=[f"{name}-{kind.__name__}" for name, kind in CASES])
def test_any_order_is_right(run: Run, scenario: str, kind: type[Engine]) -> None:
    explored = run(scenario, kind)
    assert explored.failure is None, report(explored, scenario)
