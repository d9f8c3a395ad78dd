"""
The short campaigns: executors, senders and the server are killed, and no task is lost or runs twice.

JOBQUEUE_SEED decides the victims and the times.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from verification.faults.campaign_runs import run_campaign
from verification.faults.campaigns import QUICK, Campaign
from verification.faults.pages import percentile
from verification.faults.report import LATEST_SECONDS

SEED = int(os.environ.get("JOBQUEUE_SEED") or 1)


def marks(campaign: Campaign) -> list[pytest.MarkDecorator]:
    unable = pytest.mark.skipif(not campaign.can_run, reason="PgBouncer is not installed")
    return [pytest.mark.alone, unable] if campaign.is_timed else [unable]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(campaign)) for name, campaign in QUICK.items()])
def test_no_task_is_lost_and_none_runs_twice(record_property: Callable[[str, object], None], name: str) -> None:
    made = run_campaign(f"quick-{name}", SEED)
    assert not made.failure, made.failure
    if QUICK[name].is_timed:
        assert made.figures is not None
        seconds = made.figures.recovery_seconds
        assert seconds
        p50, p99, longest = percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)
        record_property("restarts", [QUICK[name].title, len(seconds), p50, p99, longest])  # for the summary
        assert p99 <= LATEST_SECONDS, f"{p50:.1f} / {p99:.1f} / {longest:.1f} s of {len(seconds)} restarts"
