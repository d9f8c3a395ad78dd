"""
Executors, users and accidents act in a random order. No task or message is lost, duplicated, stolen or stuck.

JOBQUEUE_SEED is the first seed, JOBQUEUE_SEEDS the number of seeds.
"""

import os
from collections.abc import Callable

import pytest

from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings.process import pool_of
from verification.simulation import runner

SEED, SEEDS = int(os.environ.get("JOBQUEUE_SEED") or 1), int(os.environ.get("JOBQUEUE_SEEDS") or 40)


@pytest.mark.parametrize("has_limits", [False, True], ids=["", "limits"])
@pytest.mark.django_db  # another process uses the database
def test_simulation_ends_all_tasks_and_keeps_the_invariants(
    process_environment: dict[str, str], record_property: Callable[[str, object], None], has_limits: bool
) -> None:
    with pool_of(process_environment, 1) as pool:
        seeds = range(SEED, SEED + (SEEDS // 4 if has_limits and SEEDS > 4 else SEEDS))
        result = pool.submit(runner.run, seeds, PostgresEngine, has_limits=has_limits).result()
    record_property("plays", [result.count, result.moves])
    assert not result.problems, result.story
