"""The stepper on this session's server, and what runs a scenario's orders on it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from django.db import connections

from jobqueue.conf import parse
from jobqueue.engine import postgresql
from jobqueue.engine.postgresql import PostgresEngine
from tests.interleavings.invariants import Seen, drive_on, problems
from tests.interleavings.orders import Explored, explore
from tests.interleavings.scenarios import Scenario
from tests.interleavings.stepper import Choose, Order, Stepper
from tests.interleavings.world import World

logger = logging.getLogger(__name__)

TIDY_EVERY = 200  # orders; dead rows make the later ones slow

Run = Callable[..., Explored]


@pytest.fixture
def stepper(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stepper]:
    # An order may take its time; giving up is tested elsewhere.
    monkeypatch.setattr(postgresql, "WAKE_LOCK_TIMEOUT", "60s")
    stepper = Stepper(3)
    yield stepper
    stepper.close()


@pytest.fixture
def run(stepper: Stepper) -> Run:
    """Run a scenario's orders on an engine until one fails, or enough have not."""

    def run_orders(scenario: Scenario, kind: type[PostgresEngine] = PostgresEngine) -> Explored:
        ends: set[object] = set()
        numbers = count(1)

        def run_one(choose: Choose) -> Order:
            if next(numbers) % TIDY_EVERY == 0:
                tidy()
            world = World(kind, parse({"DATABASE": "default"}))
            order = stepper.run(scenario.set_up(world), choose)
            if not order.problems:
                seen = Seen(world)
                order.problems += problems(seen)
                if not order.problems and (shape := seen.shape()) not in ends:
                    ends.add(shape)
                    order.problems += drive_on(world)
            return order

        explored = explore(run_one, scenario.actors, is_long=scenario.is_long)
        explored.ends = len(ends)
        logger.info("%s on %s: %s", scenario.name, kind.__name__, explored)
        return explored

    return run_orders


def tidy() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_inboxmessage, jobqueue_task, jobqueue_executor")


def report(explored: Explored, scenario: str) -> str:
    """Tell a failure as a story: each step, what does not hold, and how to see it again."""
    order = explored.failure
    assert order is not None
    test = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0]
    steps = [f"  {actor.letter}  {words}" for actor, words in order.steps]
    again = f"JOBQUEUE_ORDER={order.letters} python -m pytest '{test}'"
    return "\n".join(
        [f"{scenario}: order {explored.count}, seed {explored.seed}", *steps, *order.problems, "Again:", f"  {again}"]
    )
