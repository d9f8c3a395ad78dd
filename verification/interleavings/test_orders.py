"""Every order of two connections, or many, on the real server: what must hold holds."""

import os
from collections.abc import Callable

import pytest

from jobqueue.engine.engine import Engine
from verification.interleavings.cases import CASES, Case, name_of, report
from verification.interleavings.conftest import Run

FEWEST = 5_000  # orders in a run of the suite

pytestmark = pytest.mark.django_db  # the database; what happens there happens in other processes


@pytest.mark.parametrize(("scenario", "kind"), CASES, ids=map(name_of, CASES))
def test_any_order_is_right(
    run: Run, record_property: Callable[[str, object], None], scenario: str, kind: type[Engine]
) -> None:
    explored = run(scenario, kind)
    record_property("orders", [explored.count, explored.is_whole])  # for the summary of the session
    assert explored.failure is None, report(explored, (scenario, kind))


def test_thousands_of_orders_have_run(ran: dict[Case, int]) -> None:
    if ran.keys() != set(CASES) or "JOBQUEUE_ORDER" in os.environ:
        pytest.skip("not all races were asked for")
    assert sum(ran.values()) >= FEWEST
