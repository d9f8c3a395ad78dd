"""
Run every order of two connections, or a sample, on PostgreSQL. The invariants hold after each.

The portable engine races only with JOBQUEUE_SAMPLES or JOBQUEUE_ORDER: sites run it on SQLite, which has one writer.
"""

import os
from collections.abc import Callable

import pytest

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings.cases import CASES, Case, name_of, report
from verification.interleavings.conftest import Run

MIN_ORDERS = 1_500  # orders in one test run
CHOSEN = [
    case for case in CASES if case[1] is PostgresEngine or os.environ.keys() & {"JOBQUEUE_ORDER", "JOBQUEUE_SAMPLES"}
]

pytestmark = pytest.mark.django_db  # other processes use the database


@pytest.mark.parametrize(("scenario", "kind"), CHOSEN, ids=map(name_of, CHOSEN))
def test_every_order_keeps_the_invariants(
    run: Run, record_property: Callable[[str, object], None], scenario: str, kind: type[Engine]
) -> None:
    explored = run(scenario, kind)
    record_property("orders", [explored.count, explored.is_whole])  # shown at the end of the test run
    assert explored.failure is None, report(explored, (scenario, kind))


def test_all_races_together_ran_enough_orders(ran: dict[Case, int]) -> None:
    if ran.keys() != set(CHOSEN) or os.environ.keys() & {"JOBQUEUE_ORDER", "JOBQUEUE_SAMPLES"}:
        pytest.skip("only some races or few samples were selected")
    assert sum(ran.values()) >= MIN_ORDERS
