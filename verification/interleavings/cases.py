"""Run scenarios on engines in a process pool, and describe an order that failed."""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings import process
from verification.interleavings.batch_scenarios import SCENARIOS  # all others, too
from verification.interleavings.orders import Explored, OrderPlan

Case = tuple[str, type[Engine]]

ON_PORTABLE = [name for name, scenario in SCENARIOS.items() if scenario.on_portable and scenario.clients == 2]
CASES: list[Case] = [(name, PostgresEngine) for name in SCENARIOS] + [(name, Engine) for name in ON_PORTABLE]


def name_of(case: Case) -> str:
    scenario, kind = case
    return f"{scenario}-{kind.__name__}"


def begin(pool: ProcessPoolExecutor, case: Case, plan: OrderPlan) -> Future[Explored]:
    return pool.submit(process.run, *case, plan)


def longest_first(cases: list[Case]) -> list[Case]:
    """Sort cases: races of three connections first, since they always run all their samples."""
    return sorted(cases, key=lambda case: -SCENARIOS[case[0]].clients)


def report(explored: Explored, case: Case) -> str:
    """Describe a failed order: its steps, the violated invariants, and the command that repeats it."""
    order = explored.failure
    assert order is not None
    test = f"verification/interleavings/test_orders.py::test_every_order_keeps_the_invariants[{name_of(case)}]"
    steps = [
        f"  {label}  {seconds:6.3f} s  {words}"
        for (label, words), seconds in zip(order.steps, order.took_seconds, strict=True)
    ]
    again = f"JOBQUEUE_ORDER={order.labels} python -m pytest '{test}'"
    return "\n".join(
        [f"{case[0]}: order {explored.count}, seed {explored.seed}", *steps, *order.problems, "Again:", f"  {again}"]
    )
