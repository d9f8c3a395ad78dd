"""
Executors, senders, admins and accidents, in an order drawn by chance: nothing is lost, doubled, stolen or stuck.

JOBQUEUE_SEED is the first seed, JOBQUEUE_SEEDS how many there are.
"""

import os
from collections.abc import Callable

import pytest

from jobqueue.engine.postgres.engine import PostgresEngine
from verification.interleavings.process import pool_of
from verification.simulation import process

SEED, SEEDS = int(os.environ.get("JOBQUEUE_SEED") or 1), int(os.environ.get("JOBQUEUE_SEEDS") or 200)


@pytest.mark.django_db  # the database; what happens there happens in another process
def test_everything_comes_to_its_end_whatever_happens_in_between(
    process_environment: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    with pool_of(process_environment, 1) as pool:
        played = pool.submit(process.run, range(SEED, SEED + SEEDS), PostgresEngine).result()
    record_property("plays", [played.count, played.moves])
    assert not played.problems, played.story
