"""Run scenarios in a few processes on this session's server. Each scenario has a backend alias of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings.cases import Case, begin, longest_first
from verification.interleavings.orders import Explored, OrderPlan
from verification.interleavings.process import pool_of

logger = logging.getLogger(__name__)

Run = Callable[..., Explored]
Started = dict[Case, "Future[Explored]"]


@pytest.fixture(scope="package")
def pool(process_environment: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    with pool_of(process_environment) as pool:
        yield pool


@pytest.fixture(scope="module")
def started(pool: ProcessPoolExecutor, request: pytest.FixtureRequest) -> Started:
    """Start all scenarios that this file needs, those with the most orders first."""
    items = [item for item in request.session.items if item.path == request.path]
    parameters = [item.callspec.params for item in items if hasattr(item, "callspec")]
    wanted = [(params["scenario"], params["kind"]) for params in parameters if {"scenario", "kind"} <= params.keys()]
    return {case: begin(pool, case, OrderPlan.from_environment()) for case in longest_first(wanted)}


@pytest.fixture(scope="module")
def ran() -> dict[Case, int]:
    """Return the number of orders that ran, by race."""
    return {}


@pytest.fixture
def run(pool: ProcessPoolExecutor, started: Started, ran: dict[Case, int]) -> Run:
    """Run the orders of a scenario on an engine until one fails or the plan is complete."""

    def run(scenario: str, kind: type[Engine] = PostgresEngine, plan: OrderPlan | None = None) -> Explored:
        case = (scenario, kind)
        future = started.pop(case, None) if plan is None else None
        explored = (future or begin(pool, case, plan or OrderPlan.from_environment())).result()
        ran[case] = ran.get(case, 0) + explored.count
        logger.info("%s on %s: %s", scenario, kind.__name__, explored)
        return explored

    return run
