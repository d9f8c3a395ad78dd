"""Which broken engine is caught by what: by an order of a race, or by a play of the simulation."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.engine.engine import Engine
from verification.interleavings import mutants
from verification.interleavings.invariants import (
    ENDED_FIRST,
    FAMILY,
    LOST_MAIL,
    LOST_WAKE_UP,
    ONCE,
    ONE_COMMIT,
    ROBBED,
    STALE,
    TOLD_ONCE,
    TWICE,
)
from verification.simulation.stage import (
    ANSWER,
    BEAT,
    CLAIMED_RIGHT,
    COUNTED,
    EARLY,
    STOLEN,
    TAKEN_FOR_LOST,
    WAITED,
    WOKEN,
)

DEADLOCK = "deadlock"
RAISED = "B raised IntegrityError"
PLAYS = "simulation"


@dataclass(frozen=True, slots=True)
class Catch:
    """
    verb: what is broken. by: the race, or the simulation. problem: how what it finds begins.

    seed: where the suite begins to play; where catching takes many plays, close before one that does.
    """

    verb: str
    kind: type[Engine]
    by: str
    problem: str
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind.__name__}-{self.by}"

    def cells(self, after: int, first_seed: int = 1) -> list[str]:
        """Give its row in the table of what was caught."""
        doc = " ".join((self.kind.__doc__ or "").split())
        drawn = "play" if self.by == PLAYS else "order"
        count = f"{after:,} {drawn}{'s' if after > 1 else ''}"
        return [self.verb, doc, self.by, self.problem, count if first_seed == 1 else f"{count} from seed {first_seed}"]


HEAD = ["verb", "what it does wrong", "caught by", "as", "after"]

BY_ORDERS = [
    Catch("claim", mutants.ClaimsWithoutLocking, "claim-x-claim", ONE_COMMIT),
    Catch("commit", mutants.LooksWhileLocking, "peer-x-waiting-peer", LOST_WAKE_UP),
    Catch("commit", mutants.NeverLooks, "send-x-suspend", LOST_WAKE_UP),
    Catch("commit", mutants.ForgetsToWake, "child-ends-x-parent-suspends", LOST_WAKE_UP),
    Catch("commit", mutants.IgnoresTheToken, "old-owner-ends-x-new-owner", STALE),
    Catch("commit", mutants.IgnoresTheToken, "old-owner-retries-x-new-owner", ONE_COMMIT),
    Catch("commit", mutants.ConsumesUpToTheLast, "send-x-send-and-poll", LOST_MAIL),
    Catch("commit", mutants.WaitsForReceivers, "peers-waiting", DEADLOCK),
    Catch("commit", mutants.WaitsForReceivers, "functions-of-a-family-x-child-ends", DEADLOCK),
    Catch("commit", mutants.TellsBeforeItKnows, "child-ends-x-last-loss", TOLD_ONCE),
    Catch("commit", mutants.LooksOnceForTheFamily, "end-with-children-x-child-spawns-waiting", FAMILY),
    Catch("enqueue", mutants.ForgetsIdempotencyKeys, "submit-x-submit-of-one-key", ONCE),
    Catch("send", mutants.RemembersNoRepeats, "repeat-x-poll", TWICE),
    Catch("wake", mutants.WakesWithoutLocking, "send-x-suspend", LOST_WAKE_UP),
    Catch("heartbeat", mutants.BeatsOnlyAtFirst, "beat-and-end-x-rescue", ROBBED),
    Catch("rescue", mutants.RescuesWhatItSaw, "old-owner-ends-x-new-owner", ONE_COMMIT),
    Catch("rescue", mutants.RescueTellsNoParent, "child-ends-x-last-loss", TOLD_ONCE),
    Catch("cancel", mutants.CancelsWhatItSaw, "cancel-x-child-ends-waiting", ONE_COMMIT),
    Catch("cancel", mutants.CancelTellsNoParent, "cancel-x-child-suspends", TOLD_ONCE),
    Catch("prune", mutants.PrunesWhatItSaw, "prune-x-requeue", ENDED_FIRST),
    Catch("prune", mutants.PrunesWhatItSaw, "send-x-end-and-prune", RAISED),
]
BY_PLAYS = [
    Catch("claim", mutants.ClaimsUnderTheSameNumber, PLAYS, COUNTED),
    Catch("claim", mutants.ClaimsWhatIsPaused, PLAYS, CLAIMED_RIGHT),
    Catch("commit", mutants.NeverLooks, PLAYS, LOST_WAKE_UP),
    Catch("commit", mutants.IgnoresTheToken, PLAYS, TAKEN_FOR_LOST, seed=15),
    Catch("commit", mutants.ForgetsAttempts, PLAYS, COUNTED),
    Catch("send", mutants.SendsToWhoHasEnded, PLAYS, ANSWER),
    Catch("send", mutants.RemembersNoRepeats, PLAYS, ANSWER),
    Catch("wake", mutants.RingsBeforeItsTime, PLAYS, EARLY, seed=16),
    Catch("release", mutants.ReleaseCountsAnAttempt, PLAYS, COUNTED),
    Catch("heartbeat", mutants.BeatsOnlyAtFirst, PLAYS, STOLEN),
    Catch("heartbeat", mutants.BeatsOnItsTasks, PLAYS, WAITED, seed=55),
    Catch("heartbeat", mutants.BeatsWithoutNews, PLAYS, BEAT),
    Catch("rescue", mutants.RescuesByAge, PLAYS, STOLEN),
    Catch("rescue", mutants.RescueCountsAnAttempt, PLAYS, COUNTED),
    Catch("rescue", mutants.RescueForgetsTheCancel, PLAYS, ANSWER),
    Catch("cancel", mutants.CancelsUnderTheHands, PLAYS, ONE_COMMIT),
    Catch("requeue", mutants.RequeueKeepsAttempts, PLAYS, ANSWER),
    Catch("enqueue", mutants.ForgetsKeys, PLAYS, ANSWER),
    Catch("limits", mutants.IgnoresWhatRuns, PLAYS, CLAIMED_RIGHT),
    Catch("sweep", mutants.SweepsNobody, PLAYS, WOKEN),
    Catch("sweep", mutants.SweepsAllWhoSleep, PLAYS, WOKEN),
]
MOST_PLAYS = 200  # until an engine is caught
