"""The same orders on engines that are deliberately broken: each is caught, or the stepper proves nothing."""

import pytest

from jobqueue.engine.postgresql import PostgresEngine
from tests.interleavings import mutants
from tests.interleavings.conftest import Run, report
from tests.interleavings.invariants import LOST_MAIL, LOST_WAKE_UP, ONE_COMMIT, STALE, TOLD_ONCE
from tests.interleavings.scenarios import SCENARIOS

pytestmark = pytest.mark.django_db(transaction=True)

DEADLOCK = "deadlock"


@pytest.mark.parametrize(
    ("mutant", "scenario", "invariant"),
    [
        (mutants.LooksWhileLocking, "peer-x-waiting-peer", LOST_WAKE_UP),
        (mutants.NeverLooks, "send-x-suspend", LOST_WAKE_UP),
        (mutants.WakesWithoutLocking, "send-x-suspend", LOST_WAKE_UP),
        (mutants.ForgetsToWake, "child-ends-x-parent-suspends", LOST_WAKE_UP),
        (mutants.IgnoresTheToken, "old-owner-ends-x-new-owner", STALE),
        (mutants.IgnoresTheToken, "old-owner-retries-x-new-owner", ONE_COMMIT),
        (mutants.ConsumesUpToTheLast, "send-x-send-and-poll", LOST_MAIL),
        (mutants.LocksItsOwnFirst, "peers-waiting", DEADLOCK),
        (mutants.ClaimsWithoutLocking, "claim-x-claim", ONE_COMMIT),
        (mutants.CancelsWhatItSaw, "cancel-x-child-ends", ONE_COMMIT),
        (mutants.TellsBeforeItKnows, "child-ends-x-last-loss", TOLD_ONCE),
    ],
)
def test_a_broken_engine_is_caught(run: Run, mutant: type[PostgresEngine], scenario: str, invariant: str) -> None:
    failure = run(SCENARIOS[scenario], mutant).failure
    assert failure is not None, f"{mutant.__name__} was not caught"
    assert any(problem.startswith(invariant) for problem in failure.problems), failure.problems


def test_a_failing_order_is_told_and_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS["send-x-suspend"]
    first = run(scenario, mutants.WakesWithoutLocking)
    assert first.failure is not None
    story = report(first, scenario.name)
    assert f"JOBQUEUE_ORDER={first.failure.letters} python -m pytest 'tests/interleavings/" in story

    monkeypatch.setenv("JOBQUEUE_ORDER", first.failure.letters)
    again = run(scenario, mutants.WakesWithoutLocking)

    assert again.failure is not None
    assert again.count == 1
    assert again.failure.problems == first.failure.problems
