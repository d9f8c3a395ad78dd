"""
Fifty schedules over a year: each tick becomes one task, or one record of the reason.

JOBQUEUE_SEED is the first seed, JOBQUEUE_SEEDS the number of seeds. Without it, PostgreSQL runs a quarter, in which the
clocks of Europe and America go back, and SQLite two weeks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import pytest

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings.process import pool_of
from verification.schedules import runner
from verification.schedules.simulation import YEAR

SEED, SEEDS = int(os.environ.get("JOBQUEUE_SEED") or 1), int(os.environ.get("JOBQUEUE_SEEDS") or 1)
IS_WHOLE = "JOBQUEUE_SEEDS" in os.environ


@pytest.mark.django_db  # another process uses the database
@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (PostgresEngine, YEAR if IS_WHOLE else timedelta(days=90)),
        (Engine, YEAR if IS_WHOLE else timedelta(days=14)),
    ],
    ids=["postgresql", "sqlite"],
)
def test_year_accounts_for_each_tick_of_each_schedule_once(
    process_environment: dict[str, str],
    record_property: Callable[[str, object], None],
    kind: type[Engine],
    length: timedelta,
) -> None:
    with pool_of(process_environment, 1) as pool:
        result = pool.submit(runner.run, range(SEED, SEED + SEEDS), kind, length).result()
    record_property("years", [result.years, kind.__name__, result.enqueued, result.skipped, result.crashes])
    assert not result.problem, result.story
