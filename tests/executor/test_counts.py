"""What a plain task costs, counted: a rise is seen here, and not only in a benchmark."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from benchmarks.counts import Calls
from jobqueue.conf.options import parse_options
from jobqueue.engine.postgres.engine import PostgresEngine
from tests.engine.bench import Bench, outcome
from tests.executor.harness import Burst, on_postgresql
from tests.executor.tasks import add

TASKS = 1000
CALLS = 73  # of Python functions, for each plain task without a log line. `python -m benchmarks.counts` names them.
TOLERANCE = 2  # for other versions of Python, and for what depends on the size of a batch


@on_postgresql
def test_plain_task_calls_as_many_functions_as_at_the_last_commit(
    burst: Burst, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit that makes a plain task cheaper or more expensive changes the figure, and says why."""
    caplog.set_level("WARNING", "jobqueue")
    add.enqueue_many([((1, 2), {})] * TASKS)
    with Calls() as calls:
        burst(threads=1)
    functions = calls.per_task(TASKS)
    assert abs(sum(functions.values()) - CALLS) <= TOLERANCE, functions


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
