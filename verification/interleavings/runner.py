"""Run the orders of one scenario in this process."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from unittest.mock import patch

from django.db import connections

from jobqueue.engine import messages
from jobqueue.engine.engine import Engine
from verification.interleavings.backend import IsolatedBackend
from verification.interleavings.batch_scenarios import SCENARIOS
from verification.interleavings.orders import Explored, OrderPlan, RunOne, estimate, explore
from verification.interleavings.stepper import Choose, Order, Stepper

MAX_SECONDS = 600.0  # of one order. The deadlines of its steps are far below, unless the interpreter hangs.
VACUUM_EVERY = 300  # orders: dead rows slow down the later ones
VACUUM = """
    VACUUM (TRUNCATE FALSE)
    jobqueue_inboxmessage, jobqueue_task, jobqueue_executor, jobqueue_heartbeat, jobqueue_schedule,
    jobqueue_scheduletick, jobqueue_journalentry,
    jobqueue_admissionrequest, jobqueue_ratestart, jobqueue_keyreservation, jobqueue_limit
"""


@cache
def stepper() -> Stepper:
    return Stepper(3)


def run(name: str, kind: type[Engine], plan: OrderPlan) -> Explored:
    """Run a scenario's orders on an engine until one fails or the plan is complete."""
    began = time.monotonic()
    with isolated_backend(name, kind) as backend:
        explored = run_in(backend, name, plan)
    explored.seconds = time.monotonic() - began
    return explored


def estimate_kinds(name: str, kind: type[Engine], descents: int) -> tuple[float, float]:
    """Estimate how many kinds of order a scenario has. Return the estimate and its standard error."""
    with isolated_backend(name, kind) as backend:
        return estimate(orders_of(backend, name, set()), descents, seed=1)


@contextmanager
def isolated_backend(name: str, kind: type[Engine]) -> Iterator[IsolatedBackend]:
    """Yield the backend of a scenario, and delete its rows at the end."""
    backend = SCENARIOS[name].rules.backend(kind)
    # Orders may be slow. Other tests cover the timeout.
    with patch.object(messages, "LOCK_WAIT", "60s"), backend.installed():
        try:
            yield backend
        finally:
            backend.clear()


def run_in(backend: IsolatedBackend, name: str, plan: OrderPlan) -> Explored:
    ends: set[object] = set()
    explored = explore(orders_of(backend, name, ends), SCENARIOS[name].clients, plan)
    explored.ends = len(ends)
    return explored


def orders_of(backend: IsolatedBackend, name: str, ends: set[object]) -> RunOne:
    """Return the function that runs and checks one order of a scenario. It adds each new final state to `ends`."""
    rules, scripts = SCENARIOS[name].rules, SCENARIOS[name].set_up(backend)
    backend.save()
    numbers = count(1)

    def run_one(choose: Choose) -> Order:
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True, file=2)
        if next(numbers) % VACUUM_EVERY == 0:
            vacuum()
        backend.restore()
        order = stepper().run(scripts, choose, lambda: list(rules.at_each_end(backend)))
        backend.waited = order.waited
        if not order.problems:
            snapshot = rules.snapshot(backend)
            order.problems += rules.problems(snapshot)
            if not order.problems and (shape := snapshot.shape()) not in ends:
                ends.add(shape)
                order.problems += rules.run_to_end(backend)
        faulthandler.cancel_dump_traceback_later()
        return order

    return run_one


def vacuum() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(VACUUM)
