"""
Fifty schedules over a year: each tick becomes one task, or one record of the reason.

JOBQUEUE_SEED is the first seed, JOBQUEUE_SEEDS the number of seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings.process import pool_of
from verification.schedules import runner

SEED, SEEDS = int(os.environ.get("JOBQUEUE_SEED") or 1), int(os.environ.get("JOBQUEUE_SEEDS") or 1)


@pytest.mark.django_db  # another process uses the database
@pytest.mark.parametrize("kind", [PostgresEngine, Engine], ids=["postgresql", "sqlite"])
def test_year_accounts_for_each_tick_of_each_schedule_once(
    process_environment: dict[str, str], record_property: Callable[[str, object], None], kind: type[Engine]
) -> None:
    with pool_of(process_environment, 1) as pool:
        result = pool.submit(runner.run, range(SEED, SEED + SEEDS), kind).result()
    record_property("years", [result.years, kind.__name__, result.enqueued, result.skipped, result.crashes])
    assert not result.problem, result.story
