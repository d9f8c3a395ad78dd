"""Run the short form of a campaign as a test. JOBQUEUE_SEED decides the victims and the times."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest

from verification.faults.campaign_runs import run_campaign
from verification.faults.campaigns import QUICK, Campaign
from verification.faults.pages import percentile
from verification.faults.report import LATEST_SECONDS

SEED = int(os.environ.get("JOBQUEUE_SEED") or 1)


def each_of(campaigns: Mapping[str, Campaign]) -> pytest.MarkDecorator:
    """Run a test with the name of each campaign that this machine can run."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks(of)) for name, of in campaigns.items()])


def marks(campaign: Campaign) -> list[pytest.MarkDecorator]:
    unable = pytest.mark.skipif(not campaign.can_run, reason="PgBouncer is not installed")
    return [pytest.mark.alone, unable] if campaign.is_timed else [unable]


def check(name: str, record_property: Callable[[str, object], None]) -> None:
    """Run the campaign. Compare its restarts with the promise if it is timed. Raises AssertionError."""
    made = run_campaign(f"quick-{name}", SEED)
    assert not made.failure, made.failure
    if QUICK[name].is_timed:
        assert made.figures is not None
        seconds = made.figures.recovery_seconds
        assert seconds
        p50, p99, longest = percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)
        record_property("restarts", [QUICK[name].title, len(seconds), p50, p99, longest])  # for the summary
        assert p99 <= LATEST_SECONDS, f"{p50:.1f} / {p99:.1f} / {longest:.1f} s of {len(seconds)} restarts"
