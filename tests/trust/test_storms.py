"""
What `make trust` does at length, once: executors, senders and the server are killed, and nothing is lost or doubled.

JOBQUEUE_SEED decides who dies and when.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from demo_project.postgres import Cluster, throwaway_cluster
from tests.trust.campaigns import DURABLE, QUICK, once_more, run
from tests.trust.report import LATEST_SECONDS, percentile

SEED = int(os.environ.get("JOBQUEUE_SEED") or 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with throwaway_cluster(**DURABLE) as cluster:
        yield cluster


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_lost_and_nothing_done_twice(cluster: Cluster, name: str) -> None:
    figures, again = run(f"quick-{name}", cluster, SEED), once_more(f"quick-{name}", SEED)
    assert "deadlock detected" not in cluster.log.read_text(errors="replace"), again
    if QUICK[name].is_timed:
        assert figures.recovery_seconds, again
        assert percentile(figures.recovery_seconds, 0.99) <= LATEST_SECONDS, again
