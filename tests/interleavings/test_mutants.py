"""The same orders on engines that are deliberately broken: each is caught, or the stepper proves nothing."""

import pytest

from jobqueue.engine.base import Engine
from tests.interleavings import mutants
from tests.interleavings.cases import report
from tests.interleavings.conftest import Run
from tests.interleavings.invariants import (
    ENDED_FIRST,
    FAMILY,
    LOST_MAIL,
    LOST_WAKE_UP,
    ONE_COMMIT,
    STALE,
    TOLD_ONCE,
    TWICE,
)
from tests.interleavings.orders import Plan

pytestmark = pytest.mark.django_db  # the database; what happens there happens in other processes

DEADLOCK = "deadlock"
RAISED = "B raised IntegrityError"


@pytest.mark.parametrize(
    ("broken", "scenario", "invariant"),
    [
        (mutants.LooksWhileLocking, "peer-x-waiting-peer", LOST_WAKE_UP),
        (mutants.NeverLooks, "send-x-suspend", LOST_WAKE_UP),
        (mutants.WakesWithoutLocking, "send-x-suspend", LOST_WAKE_UP),
        (mutants.ForgetsToWake, "child-ends-x-parent-suspends", LOST_WAKE_UP),
        (mutants.IgnoresTheToken, "old-owner-ends-x-new-owner", STALE),
        (mutants.IgnoresTheToken, "old-owner-retries-x-new-owner", ONE_COMMIT),
        (mutants.ConsumesUpToTheLast, "send-x-send-and-poll", LOST_MAIL),
        (mutants.WaitsForReceivers, "peers-waiting", DEADLOCK),
        (mutants.WaitsForReceivers, "functions-of-a-family-x-child-ends", DEADLOCK),
        (mutants.ClaimsWithoutLocking, "claim-x-claim", ONE_COMMIT),
        (mutants.CancelsWhatItSaw, "cancel-x-child-ends-waiting", ONE_COMMIT),
        (mutants.TellsBeforeItKnows, "child-ends-x-last-loss", TOLD_ONCE),
        (mutants.LooksOnceForTheFamily, "end-with-children-x-child-spawns-waiting", FAMILY),
        (mutants.PrunesWhatItSaw, "prune-x-requeue", ENDED_FIRST),
        (mutants.PrunesWhatItSaw, "send-x-end-and-prune", RAISED),
        (mutants.RemembersNoRepeats, "repeat-x-poll", TWICE),
    ],
)
def test_a_broken_engine_is_caught(run: Run, broken: type[Engine], scenario: str, invariant: str) -> None:
    failure = run(scenario, broken, Plan()).failure
    assert failure is not None, f"{broken.__name__} was not caught"
    assert any(problem.startswith(invariant) for problem in failure.problems), failure.problems


def test_a_failing_order_is_told_and_repeated(run: Run) -> None:
    first = run("send-x-suspend", mutants.WakesWithoutLocking, Plan())
    assert first.failure is not None
    story = report(first, ("send-x-suspend", mutants.WakesWithoutLocking))
    assert f"JOBQUEUE_ORDER={first.failure.letters} python -m pytest 'tests/interleavings/" in story

    again = run("send-x-suspend", mutants.WakesWithoutLocking, Plan(letters=first.failure.letters))

    assert again.failure is not None
    assert again.count == 1
    assert again.failure.problems == first.failure.problems
