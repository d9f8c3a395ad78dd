"""The thread that waits for nobody, looking once."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from jobqueue.exceptions import ClaimLost, Interrupted, ShuttingDown, TaskCancelled, TaskTimeout
from jobqueue.executor.hold import Hold
from jobqueue.executor.watchdog import LOOK_SECONDS, Watchdog
from tests.executor.harness import make_claim

GRACE_SECONDS = 2.0


class Rig:
    def __init__(self) -> None:
        self.hold = Hold(make_claim())
        self.heart = SimpleNamespace(failure=None, last_good_at=time.monotonic(), is_fenced=lambda: False)
        self.told: list[type[Interrupted]] = []
        self.stuck: list[Hold] = []
        self.watchdog = Watchdog(
            {self.hold.id: self.hold},
            self.heart,  # type: ignore[arg-type]
            [],
            GRACE_SECONDS,
            self.stuck.append,
            lambda failure: None,
        )
        self.hold.arm(self.told.append)

    def told_long_ago(self, reason: type[Interrupted]) -> Rig:
        self.hold.interrupt(reason)
        self.hold.told_first_at = self.hold.told_at = time.monotonic() - GRACE_SECONDS - 60.0
        return self


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_body_is_told_when_its_time_is_over(rig: Rig) -> None:
    rig.hold.start(0.0)
    rig.watchdog._check()
    assert rig.told == [TaskTimeout]


def test_next_look_is_no_later_than_the_next_timeout(rig: Rig) -> None:
    assert rig.watchdog._check() == LOOK_SECONDS
    rig.hold.start(LOOK_SECONDS / 2)
    assert rig.watchdog._check() <= LOOK_SECONDS / 2
    assert rig.told == []


@pytest.mark.parametrize("reason", [TaskTimeout, TaskCancelled, ClaimLost])
def test_body_that_does_not_stop_is_stuck(rig: Rig, reason: type[Interrupted]) -> None:
    rig.told_long_ago(reason).watchdog._check()
    assert rig.stuck == [rig.hold]


def test_body_that_is_only_told_of_a_shutdown_is_not_to_blame(rig: Rig) -> None:
    """It may sit on an event loop that another body blocks; a loss would be counted against it."""
    rig.told_long_ago(ShuttingDown).watchdog._check()
    assert rig.stuck == []


def test_lost_heartbeat_tells_every_body(rig: Rig) -> None:
    rig.heart.is_fenced = lambda: True
    rig.watchdog._check()
    assert rig.told == [ClaimLost]
