"""Scenarios explored by a few processes at once, on this session's server; each in a world of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from jobqueue.engine.base import Engine
from jobqueue.engine.postgresql import PostgresEngine
from tests.interleavings import process
from tests.interleavings.orders import Explored, Plan
from tests.interleavings.scenarios import SCENARIOS

logger = logging.getLogger(__name__)

Run = Callable[..., Explored]
Started = dict[tuple[str, type[Engine]], "Future[Explored]"]


@pytest.fixture(scope="package")
def pool(process_environment: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    """Processes on the test database; an order keeps one processor busy, between Python and the server."""
    with ProcessPoolExecutor(
        max_workers=min(4, 2 * (os.cpu_count() or 1)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=process.set_up,
        initargs=(process_environment,),
    ) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def started(pool: ProcessPoolExecutor, request: pytest.FixtureRequest) -> Started:
    """Begin with all scenarios that this file will ask for, those of many orders first."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params for item in items if hasattr(item, "callspec")]
    wanted = [(params["scenario"], params["kind"]) for params in asked if {"scenario", "kind"} <= params.keys()]
    wanted.sort(key=lambda one: -SCENARIOS[one[0]].actors)
    return {one: begin(pool, *one) for one in wanted}


@pytest.fixture
def run(pool: ProcessPoolExecutor, started: Started) -> Run:
    """Run a scenario's orders on an engine until one fails, or enough have not."""

    def run(scenario: str, kind: type[Engine] = PostgresEngine, plan: Plan | None = None) -> Explored:
        future = started.pop((scenario, kind), None) if plan is None else None
        explored = (future or begin(pool, scenario, kind, plan)).result()
        logger.info("%s on %s: %s", scenario, kind.__name__, explored)
        return explored

    return run


def begin(pool: ProcessPoolExecutor, scenario: str, kind: type[Engine], plan: Plan | None = None) -> Future[Explored]:
    return pool.submit(process.run, scenario, kind, plan or Plan.from_environment())


def report(explored: Explored, scenario: str) -> str:
    """Tell a failure as a story: each step, what does not hold, and how to see it again."""
    order = explored.failure
    assert order is not None
    test = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0]
    steps = [
        f"  {letter}  {seconds:6.3f} s  {words}"
        for (letter, words), seconds in zip(order.steps, order.took_seconds, strict=True)
    ]
    again = f"JOBQUEUE_ORDER={order.letters} python -m pytest '{test}'"
    return "\n".join(
        [f"{scenario}: order {explored.count}, seed {explored.seed}", *steps, *order.problems, "Again:", f"  {again}"]
    )
