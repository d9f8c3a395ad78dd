"""Test that a failed run names its seed and does not end the other runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from verification.faults import campaign_runs, campaigns
from verification.faults.campaigns import Campaign
from verification.faults.fault_runner import FaultPlan, FaultRunner


@pytest.mark.parametrize("error", [AssertionError("lost"), FileNotFoundError("/proc/1/fd"), KeyError("code")])
def test_any_error_of_a_run_is_reported_with_the_command_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    @contextmanager
    def stand_in(*_: Any, **__: Any) -> Iterator[Any]:
        yield SimpleNamespace(log=tmp_path / "log")

    (tmp_path / "log").touch()
    monkeypatch.setattr(campaigns, "ALL", {"broken": Campaign("", FaultPlan({}))})
    monkeypatch.setattr(FaultRunner, "run", fail)
    monkeypatch.setattr(campaign_runs, "fault_environment", stand_in)
    monkeypatch.setattr(campaign_runs, "throwaway_cluster", stand_in)

    made = campaign_runs.run_campaign("broken", 7)

    assert made.figures is None
    assert str(error) in made.failure
    assert "make verify ARGS='--only broken --seed 7'" in made.failure
