"""
The short campaigns: executors, senders and the server are killed, and no task is lost or runs twice.

JOBQUEUE_SEED decides the victims and the times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from demo_project.postgres import Cluster, throwaway_cluster
from verification.faults.campaigns import DURABLE, QUICK, Campaign, once_more, run
from verification.faults.report import LATEST_SECONDS, percentile

SEED = int(os.environ.get("JOBQUEUE_SEED") or 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with throwaway_cluster(**DURABLE) as cluster:
        yield cluster


def marks(campaign: Campaign) -> list[pytest.MarkDecorator]:
    unable = pytest.mark.skipif(not campaign.can_run, reason="PgBouncer is not installed")
    return [pytest.mark.alone, unable] if campaign.is_timed else [unable]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(one)) for name, one in QUICK.items()])
def test_nothing_is_lost_and_nothing_done_twice(
    cluster: Cluster, record_property: Callable[[str, object], None], name: str
) -> None:
    figures, again = run(f"quick-{name}", cluster, SEED), once_more(f"quick-{name}", SEED)
    assert "deadlock detected" not in cluster.log.read_text(errors="replace"), again
    if QUICK[name].is_timed:
        seconds = figures.recovery_seconds
        assert seconds, again
        p50, p99, longest = percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)
        record_property("restarts", [QUICK[name].title, len(seconds), p50, p99, longest])  # for the summary
        assert p99 <= LATEST_SECONDS, f"{p50:.1f} / {p99:.1f} / {longest:.1f} s of {len(seconds)} restarts; {again}"
