"""Runs the orders of one scenario: in a process of its own, since they keep a processor busy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from unittest.mock import patch

from django.db import connections

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres import wake
from verification.interleavings.invariants import Seen, drive_on, problems
from verification.interleavings.orders import Explored, Plan, RunOne, estimate, explore
from verification.interleavings.scenarios import SCENARIOS
from verification.interleavings.stepper import Choose, Order, Stepper
from verification.interleavings.world import World

TIDY_EVERY = 300  # orders; dead rows make the later ones slow


@cache
def stepper() -> Stepper:
    return Stepper(3)


def run(name: str, kind: type[Engine], plan: Plan) -> Explored:
    """Run a scenario's orders on an engine until one fails, or enough have not."""
    began = time.monotonic()
    with world_of(kind) as world:
        explored = run_in(world, name, plan)
    explored.seconds = time.monotonic() - began
    return explored


def estimate_kinds(name: str, kind: type[Engine], descents: int) -> tuple[float, float]:
    """About how many kinds of order a scenario has, and the standard error of that."""
    with world_of(kind) as world:
        return estimate(orders_of(world, name, set()), descents, seed=1)


@contextmanager
def world_of(kind: type[Engine]) -> Iterator[World]:
    world = World(kind)
    # An order may take its time; giving up is tested elsewhere.
    with patch.object(wake, "WAKE_LOCK_TIMEOUT", "60s"):
        try:
            yield world
        finally:
            world.clear()


def run_in(world: World, name: str, plan: Plan) -> Explored:
    ends: set[object] = set()
    explored = explore(orders_of(world, name, ends), SCENARIOS[name].actors, plan)
    explored.ends = len(ends)
    return explored


def orders_of(world: World, name: str, ends: set[object]) -> RunOne:
    """Give what runs one order of a scenario, and judges it. ends: is filled with those that differed."""
    scripts = SCENARIOS[name].set_up(world)
    world.save()
    numbers = count(1)

    def run_one(choose: Choose) -> Order:
        if next(numbers) % TIDY_EVERY == 0:
            tidy()
        world.restore()
        order = stepper().run(scripts, choose)
        if not order.problems:
            seen = Seen(world)
            order.problems += problems(seen)
            if not order.problems and (shape := seen.shape()) not in ends:
                ends.add(shape)
                order.problems += drive_on(world)
        return order

    return run_one


def tidy() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("VACUUM (TRUNCATE FALSE) jobqueue_inboxmessage, jobqueue_task, jobqueue_executor")
