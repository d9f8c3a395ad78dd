"""
Plans that a session made while the tables were empty, and keeps when they are full.

An executor that starts on a new site, or after its tasks were pruned, plans its statements beside empty tables. The
planner knows their size, and takes a scan of all rows for the cheapest plan. PostgreSQL keeps the plan until the next
ANALYZE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from jobqueue.engine.postgres.connection import statement
from tests.engine.bench import Bench, new
from tests.engine.conftest import make_bench
from tests.engine.sessions import separate_schema
from tests.engine.test_plan_shapes import BIG, CALLS, EVEN, HOLDER, MAX_ROWS, PARENT, ROWS, fill
from tests.engine.test_plans import Reader

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


# The calls of an idle executor.
IDLE = (
    "claim", "claim_limited", "claim_isolated", "release_unknown", "pending_maintenance", "wake_due", "sweep", "admit",
    "prune", "has_isolated", "queues_in_use", "queue_latency", "has_no_work_left", "schedules",
)  # fmt: skip

ONCE = {"claim_limited"}  # what it changes remains, and other calls fail
# Calls of people, whose sessions prepare nothing: test_plan_shapes.py reads their plans.
OF_PEOPLE = {"cancel_tree", "cancel_of_many", "descendants", "requeue", "delete", "run_now", "discard"}
SESSIONS = {
    "executor": set(CALLS) - ONCE - OF_PEOPLE,
    "site": {"enqueue", "enqueue_once", "enqueue_limited", "send", "send_once"},
}


def call_all(bench: Bench, names: Collection[str], most_rows: int) -> list[str]:
    """Call these statements. Return the reads above the limit. After a ROLLBACK, psycopg would drop all plans."""
    faults = []
    for name, (prepare, call) in CALLS.items():
        if name not in names:
            continue
        prepared = prepare(bench)
        reader = Reader(most_rows, BIG, explains=False)
        with transaction.atomic(), connection.execute_wrapper(reader):
            call(bench, prepared)
        faults += [f"{name}: {fault}" for fault in reader.faults]
    return faults


@pytest.fixture(scope="module", params=SESSIONS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bench(kind: str, django_db_setup: None, django_db_blocker: Any) -> Iterator[Bench]:
    """Prepare the statements of a session while nothing is there, then fill the tables."""
    with django_db_blocker.unblock(), separate_schema("kept_plans", *BIG) as cursor:
        raw = connection.connection
        before = raw.prepare_threshold, raw.prepared_max
        bench = make_bench("postgresql")
        bench.beat()
        if kind == "executor":
            cursor.execute(statement("generic_plans"))
            raw.prepare_threshold, raw.prepared_max = 0, 1000
            for name in IDLE:
                CALLS[name][1](bench, None)
        parent = Bench(bench.engine)
        parent.engine.enqueues.enqueue([new(id=PARENT)])
        call_all(bench, SESSIONS[kind], ROWS)
        parent.executor_id = HOLDER
        parent.beat()  # no executor rescues the other tasks
        fill(cursor, EVEN, 1, ROWS)
        yield bench
        raw.prepare_threshold, raw.prepared_max = before
        cursor.execute("RESET plan_cache_mode")
        cursor.execute("RESET enable_seqscan")


def test_plans_made_beside_empty_tables_read_few_rows_later(kind: str, bench: Bench) -> None:
    faults = call_all(bench, SESSIONS[kind], MAX_ROWS)
    assert not faults, "\n\n".join(faults)
