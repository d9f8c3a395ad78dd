"""The watchdog, checking once."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from jobqueue.engine import engine_for
from jobqueue.exceptions import ClaimLost, Interrupted, ShuttingDown, TaskCancelled, TaskTimeout
from jobqueue.executor.running.attempt import RunningTask
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.watchdog import LOOK_SECONDS, Watchdog
from tests.executor.harness import make_running

GRACE_SECONDS = 2.0


class Rig:
    def __init__(self) -> None:
        self.hold = make_running()
        self.heart = SimpleNamespace(failure=None, last_good_at=time.monotonic(), is_fenced=lambda: False)
        self.told: list[type[Interrupted]] = []
        self.stuck: list[RunningTask] = []
        running_tasks = RunningTasks(engine_for("default"))
        running_tasks.add([self.hold])
        self.watchdog = Watchdog(
            running_tasks,
            self.heart,  # type: ignore[arg-type]
            [],
            GRACE_SECONDS,
            self.stuck.append,
            lambda failure: None,
        )
        self.hold.arm(self.told.append)

    def told_long_ago(self, reason: type[Interrupted]) -> Rig:
        self.hold.interrupt(reason)
        self.hold.first_interrupted_at = self.hold.interrupted_at = time.monotonic() - GRACE_SECONDS - 60.0
        return self


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_watchdog_interrupts_a_task_at_its_timeout(rig: Rig) -> None:
    rig.hold.start(0.0)
    rig.watchdog._check()
    assert rig.told == [TaskTimeout]


def test_watchdog_checks_again_before_the_next_timeout(rig: Rig) -> None:
    assert rig.watchdog._check() == LOOK_SECONDS
    rig.hold.start(LOOK_SECONDS / 2)
    assert rig.watchdog._check() <= LOOK_SECONDS / 2
    assert rig.told == []


@pytest.mark.parametrize("reason", [TaskTimeout, TaskCancelled, ClaimLost])
def test_watchdog_reports_a_task_that_ignores_interruptions(rig: Rig, reason: type[Interrupted]) -> None:
    rig.told_long_ago(reason).watchdog._check()
    assert rig.stuck == [rig.hold]


def test_watchdog_ignores_slow_tasks_during_a_shutdown(rig: Rig) -> None:
    """Another task may block its event loop, and a loss would count against it."""
    rig.told_long_ago(ShuttingDown).watchdog._check()
    assert rig.stuck == []


def test_watchdog_interrupts_all_tasks_without_heartbeats(rig: Rig) -> None:
    rig.heart.is_fenced = lambda: True
    rig.watchdog._check()
    assert rig.told == [ClaimLost]
