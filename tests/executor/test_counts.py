"""What a plain task costs, counted: a rise is seen here, and not only in a benchmark."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.conf.options import parse_options
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.executor.running.attempt import RunningTask
from tests.engine.bench import Bench, outcome
from tests.executor.harness import Burst, on_postgresql
from tests.executor.tasks import add, add_later

CHECKOUT = Path(__file__).resolve().parent.parent.parent


def test_cost_of_a_plain_task_is_not_above_that_of_the_last_commit() -> None:
    """A commit that makes a plain task more expensive changes benchmarks/cost/cost.toml, and says why."""
    command = [sys.executable, "-m", "benchmarks.cost", "--no-instructions"]  # nothing of other tests is in its process
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@on_postgresql
def test_a_plain_batch_is_committed_and_the_next_claimed_by_two_statements() -> None:
    bench = Bench(PostgresEngine("default", parse_options({})))
    for _ in range(20):
        bench.add()
    outcomes = [outcome(claimed) for claimed in bench.claim(10)]

    with CaptureQueriesContext(connection) as queries:
        committed, claims = bench.engine.commit_and_claim(outcomes, bench.claim_request(10))

    assert (len(committed.done), len(claims)) == (10, 10)
    statements = [query["sql"] for query in queries.captured_queries]
    assert len(statements) == 4
    assert [text for text in statements if text in ("BEGIN", "COMMIT")] == ["BEGIN", "COMMIT"]


@on_postgresql
@pytest.mark.parametrize("body", [add, add_later])
def test_an_ended_task_is_freed_without_the_garbage_collector(burst: Burst, body: Any) -> None:
    """Each task that waits for it costs a tenth of the executor's time, and its memory until then."""
    body.enqueue_many([((1, 2), {})] * 100)
    gc.collect()
    gc.disable()
    try:
        burst(threads=1)
        left = [thing for thing in gc.get_objects() if isinstance(thing, RunningTask)]
    finally:
        gc.enable()
    assert len(left) < 10
