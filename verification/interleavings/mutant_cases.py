"""The broken engines, and for each the race or simulation that detects it."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.engine.engine import Engine
from verification.interleavings import batch_mutants, limit_mutants, mutants, schedule_mutants, workflow_mutants
from verification.interleavings.batch_invariants import AFTER_MEMBERS, CALLED
from verification.interleavings.batch_invariants import COUNTED as MISCOUNTED
from verification.interleavings.batch_invariants import ENDS as BATCH_ENDS
from verification.interleavings.invariants import (
    CONSUMED_TWICE,
    ENDED_FIRST,
    FAMILY,
    IDEMPOTENCY,
    LOST_MESSAGE,
    LOST_WAKE_UP,
    ONE_COMMIT,
    REPORTED_ONCE,
    STALE,
    STOLEN_FROM_LIVING,
)
from verification.interleavings.limit_invariants import BLOCKED, CONCURRENT, ONE_TASK, RATE, WAITS
from verification.interleavings.schedule_invariants import (
    DEPLOYED,
    NEXT_TICK,
    NO_OVERLAP,
    REPLACED,
    STOPPED,
    TICK_LOST,
    TICK_TWICE,
    WRONG_RUNS,
)
from verification.interleavings.workflow_invariants import FENCED, KEPT, TOGETHER, UNDONE
from verification.simulation.simulated_backend import (
    ANSWER,
    BEAT,
    CLAIMED_RIGHT,
    COUNTED,
    EARLY,
    REST,
    STOLEN,
    TAKEN_FOR_LOST,
    WAITED,
    WOKEN,
)
from verification.simulation.simulated_backend import RATE as STARTS

DEADLOCK = "deadlock"
RAISED = "B raised IntegrityError"
EXCEEDED = "exceeded"
SIMULATION = "simulation"


@dataclass(frozen=True, slots=True)
class MutantCase:
    """
    A broken engine and its detection. operation: the broken one. by: the race, or the simulation. problem: how the
    report of it starts.

    seed: where the simulation starts in tests. Rare detections start close to a seed that works. has_limits: many tasks
    of the simulation have limits. is_sample_only: random orders find it sooner than one order of each kind.
    """

    operation: str
    kind: type[Engine]
    by: str
    problem: str
    seed: int = 1
    has_limits: bool = False
    is_sample_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind.__name__}-{self.by}"

    def cells(self, after: int, first_seed: int = 1) -> list[str]:
        """Return this case's row of the report."""
        doc = " ".join((self.kind.__doc__ or "").split())
        sample = "simulation" if self.by == SIMULATION else "order"
        count = f"{after:,} {sample}{'s' if after > 1 else ''}"
        return [
            self.operation,
            doc,
            self.by,
            self.problem,
            count if first_seed == 1 else f"{count} from seed {first_seed}",
        ]


HEAD = ["operation", "what it does wrong", "caught by", "as", "after"]

CAUGHT_BY_RACES = [
    MutantCase("claim", mutants.ClaimsWithoutLocking, "claim-x-claim", ONE_COMMIT),
    MutantCase("commit", mutants.ReadsInboxWhileLocking, "peer-x-waiting-peer", LOST_WAKE_UP),
    MutantCase("commit", mutants.NeverChecksInbox, "send-x-suspend", LOST_WAKE_UP),
    MutantCase("commit", mutants.OmitsWakes, "child-ends-x-parent-suspends", LOST_WAKE_UP),
    MutantCase("commit", mutants.IgnoresClaimNumber, "old-owner-ends-x-new-owner", STALE),
    MutantCase("commit", mutants.IgnoresClaimNumber, "old-owner-retries-x-new-owner", ONE_COMMIT),
    MutantCase("commit", mutants.IgnoresClaimNumberOfFunctions, "old-function-ends-x-new-owner", ONE_COMMIT),
    MutantCase("commit", mutants.ConsumesUpToHighestId, "send-x-send-and-poll", LOST_MESSAGE),
    MutantCase("commit", mutants.WaitsForReceivers, "peers-waiting", DEADLOCK),
    MutantCase("commit", mutants.WaitsForReceivers, "functions-of-a-family-x-child-ends", DEADLOCK),
    MutantCase("commit", mutants.ReportsBeforeClaimCheck, "child-ends-x-last-loss", REPORTED_ONCE),
    MutantCase("commit", mutants.ReadsDescendantsOnce, "end-with-children-x-child-spawns-waiting", FAMILY),
    MutantCase("enqueue", mutants.IgnoresIdempotencyKeys, "submit-x-submit-of-one-key", IDEMPOTENCY),
    MutantCase("send", mutants.IgnoresDedupeKeys, "repeat-x-poll", CONSUMED_TWICE),
    MutantCase("wake", mutants.WakesWithoutLocking, "send-x-suspend", LOST_WAKE_UP),
    MutantCase("heartbeat", mutants.WritesOnlyFirstHeartbeat, "heartbeat-and-end-x-rescue", STOLEN_FROM_LIVING),
    MutantCase("rescue", mutants.RescuesWithoutRecheck, "old-owner-ends-x-new-owner", ONE_COMMIT),
    MutantCase("rescue", mutants.RescueOmitsParentReport, "child-ends-x-last-loss", REPORTED_ONCE),
    MutantCase("cancel", mutants.CancelsWithoutLocking, "cancel-x-child-ends-waiting", ONE_COMMIT),
    MutantCase("cancel", mutants.CancelOmitsParentReport, "cancel-x-child-suspends", REPORTED_ONCE),
    MutantCase("prune", mutants.PrunesWithoutLocking, "prune-x-requeue", ENDED_FIRST),
    MutantCase("fire", schedule_mutants.FiresWithoutLocking, "fire-x-fire-that-skips", TICK_TWICE),
    MutantCase("fire", schedule_mutants.PlansFromUnlockedRows, "fire-x-edit", STOPPED),
    MutantCase("fire", schedule_mutants.PlansFromUnlockedRows, "fire-x-fire-that-skips", TICK_TWICE),
    MutantCase("fire", schedule_mutants.AdvancesInSecondTransaction, "fire-x-crash-after-commit", STOPPED),
    MutantCase("fire", schedule_mutants.UsesProcessClock, "fire-x-fire", TICK_LOST),
    MutantCase("fire", schedule_mutants.ReadsRunningTasksBeforeLocking, "fire-x-time-passes-and-fire", NO_OVERLAP),
    MutantCase("fire", schedule_mutants.IgnoresRefusedKeys, "fire-x-enqueue-of-its-key", TICK_LOST),
    MutantCase("fire", schedule_mutants.RecordsTaskAndSkip, "fire-x-crash-before-commit", STOPPED),
    MutantCase("fire", schedule_mutants.RecordsTaskAndSkip, "fire-x-fire-after-skips", TICK_TWICE),
    MutantCase("fire", schedule_mutants.ForgetsLockedRunningTasks, "fire-x-claim-of-the-running-task", REPLACED),
    MutantCase("edit", schedule_mutants.EditIgnoresDueTicks, "fire-x-edit", TICK_LOST),
    MutantCase("edit", schedule_mutants.EditIgnoresJitter, "fire-x-edit-with-jitter", TICK_LOST),
    MutantCase("edit", schedule_mutants.EditReadsClockBeforeLocking, "fire-x-edit-while-time-passes", TICK_TWICE),
    MutantCase("edit", schedule_mutants.SaveExpectsItsRow, "edit-x-delete", "A raised DoesNotExist"),
    MutantCase("pause", schedule_mutants.PauseIgnoresDueTicks, "fire-x-pause", WRONG_RUNS),
    MutantCase("run now", schedule_mutants.RunNowIgnoresDueTicks, "fire-x-run-now", WRONG_RUNS),
    MutantCase("retire", schedule_mutants.RetireIgnoresDueTicks, "fire-x-retire", TICK_LOST),
    MutantCase("retire", schedule_mutants.RetireForgetsWaitingTick, "fire-x-retire-of-a-waiting-tick", TICK_LOST),
    MutantCase("retire", schedule_mutants.RetireLeavesDueAt, "fire-x-retire", NEXT_TICK),
    MutantCase("backfill", schedule_mutants.RepeatsBackfill, "fire-x-backfill", TICK_TWICE),
    MutantCase("backfill", schedule_mutants.BackfillReadsBeforeLocking, "backfill-x-backfill", RAISED),
    MutantCase("prune ticks", schedule_mutants.PrunesNewestRecords, "fire-x-prune", TICK_LOST),
    MutantCase("deploy", schedule_mutants.DeploysInAnyOrder, "pause-two-x-synchronize", DEADLOCK),
    MutantCase("deploy", schedule_mutants.DeploysWithoutLocking, "old-code-x-new-code", DEPLOYED),
    MutantCase("admit", limit_mutants.AdmitsWithoutLocking, "request-and-admit-x-admit", CONCURRENT),
    MutantCase("admit", limit_mutants.CountsBeforeLocking, "request-and-admit-x-admit", CONCURRENT),
    MutantCase("admit", limit_mutants.LosesRequests, "admit-x-crash-after-commit", BLOCKED),
    MutantCase("admit", limit_mutants.ForgetsLockedTasks, "cancel-and-roll-back-x-admit", BLOCKED),
    MutantCase("admit", limit_mutants.WaitsForLockedTasks, "cancel-x-admit", WAITS),
    MutantCase("admit", limit_mutants.KeepsLaterRequest, "cancel-and-admit-x-cancel-of-a-rate", BLOCKED),
    MutantCase("admit", limit_mutants.SavesUpBudget, "claim-x-admit-of-a-rate", RATE),
    MutantCase("admit", limit_mutants.ForgetsEarlierStarts, "retry-x-admit-of-a-rate", RATE),
    MutantCase("admit", limit_mutants.ForgetsClaimedTasks, "claim-x-admit-of-a-rate", RATE),
    MutantCase("commit", limit_mutants.RequestsNothingAtTheEnd, "end-x-admit", BLOCKED),
    MutantCase("release", limit_mutants.RunsAgainAtOnce, "release-x-admit-of-a-rate", RATE, is_sample_only=True),
    MutantCase(
        "rescue",
        limit_mutants.RequestsNothingAfterTheLastLoss,
        "rescue-x-admit-after-the-last-loss",
        BLOCKED,
        is_sample_only=True,
    ),
    MutantCase("rescue", limit_mutants.ForgetsLostStarts, "rescue-x-admit-of-a-rate", RATE),
    MutantCase("requeue", limit_mutants.RequeueSkipsLimit, "requeue-x-admit", CONCURRENT),
    MutantCase("wake", limit_mutants.WakeSkipsLimit, "send-x-admit", CONCURRENT),
    MutantCase("wake due", limit_mutants.WakeDueSkipsLimit, "wake-due-x-end", CONCURRENT),
    MutantCase("prune", limit_mutants.PrunesStarts, "prune-x-admit-of-a-rate", RATE),
    MutantCase("set limit", limit_mutants.RequestsNumbersOnce, "raise-all-limits-x-enqueue-and-admit", BLOCKED),
    MutantCase("reserve", limit_mutants.TrustsAnEarlierRead, "unique-for-x-prune", ONE_TASK),
    MutantCase("reserve", limit_mutants.TrustsAnEarlierRead, "unique-for-x-unique-for-of-an-expired-key", ONE_TASK),
    MutantCase("prune", limit_mutants.PrunesRenewedKeys, "unique-for-and-end-and-unique-for-x-prune", ONE_TASK),
    MutantCase("replace", limit_mutants.ReplacesWithoutLocking, "replace-x-claim", ONE_COMMIT),
    MutantCase("replace", limit_mutants.ReplacesInOrderOfKeys, "replace-two-x-cancel-two", DEADLOCK),
    MutantCase("record", workflow_mutants.RecordsWithoutClaim, "new-owner-x-old-owner-records", FENCED),
    MutantCase("record", workflow_mutants.ChecksClaimWithoutLocking, "new-owner-x-old-owner-records", FENCED),
    MutantCase("record", workflow_mutants.WritesEffectsLater, "crash-before-record-x-rescue", TOGETHER),
    MutantCase("commit", workflow_mutants.WritesEntriesAfterCommit, "crash-after-commit-of-entries-x-message", KEPT),
    MutantCase("commit", workflow_mutants.RestartEmptiesInbox, "restart-x-message", LOST_MESSAGE),
    MutantCase("cancel", workflow_mutants.CancelsAtOnce, "suspend-with-compensation-x-cancel", UNDONE),
    MutantCase("rescue", workflow_mutants.RescueCancelsAtOnce, "cancel-x-rescue-with-compensation", UNDONE),
    MutantCase(
        "batch ends", batch_mutants.EndsBesideOpenTransactions, "add-x-batch-ends", AFTER_MEMBERS, is_sample_only=True
    ),
    MutantCase(
        "batch ends", batch_mutants.EndsBeforeUnreadMessages, "add-x-batch-ends", AFTER_MEMBERS, is_sample_only=True
    ),
    MutantCase("batch ends", batch_mutants.CallsAfterCommit, "crash-after-last-poll-x-rescue", CALLED),
    MutantCase("batch ends", batch_mutants.CallsAgain, "requeue-and-end-x-batch-polls", CALLED),
    MutantCase("batch counts", batch_mutants.CountsEachEnd, "requeue-member-x-other-ends", MISCOUNTED),
    MutantCase("cancel batch", batch_mutants.LeavesLockedMembers, "cancel-batch-x-locked-member", AFTER_MEMBERS),
    MutantCase("add to batch", batch_mutants.AddsToEndedBatch, "add-x-batch-fails", AFTER_MEMBERS),
    MutantCase("requeue", batch_mutants.RequeueTellsNoBatch, "requeue-and-end-x-batch-polls", BATCH_ENDS),
    MutantCase("requeue", batch_mutants.RequeueLeavesFailingPoll, "requeue-member-x-batch-fails", MISCOUNTED),
]
CAUGHT_BY_SIMULATION = [
    MutantCase("claim", mutants.ReusesClaimNumber, SIMULATION, COUNTED),
    MutantCase("claim", mutants.ClaimsFromPausedQueues, SIMULATION, CLAIMED_RIGHT),
    MutantCase("commit", mutants.NeverChecksInbox, SIMULATION, LOST_WAKE_UP),
    MutantCase("commit", mutants.IgnoresClaimNumber, SIMULATION, TAKEN_FOR_LOST, seed=15),
    MutantCase("commit", mutants.KeepsAttempts, SIMULATION, COUNTED),
    MutantCase("send", mutants.SendsToFinishedTasks, SIMULATION, ANSWER),
    MutantCase("send", mutants.IgnoresDedupeKeys, SIMULATION, ANSWER),
    MutantCase("wake", mutants.WakesTooEarly, SIMULATION, EARLY, seed=16),
    MutantCase("release", mutants.ReleaseCountsAnAttempt, SIMULATION, COUNTED),
    MutantCase("heartbeat", mutants.WritesOnlyFirstHeartbeat, SIMULATION, STOLEN),
    MutantCase("heartbeat", mutants.WritesHeartbeatOnTasks, SIMULATION, WAITED, seed=55),
    MutantCase("heartbeat", mutants.HeartbeatOmitsCancels, SIMULATION, BEAT),
    MutantCase("rescue", mutants.RescuesByClaimAge, SIMULATION, STOLEN),
    MutantCase("rescue", mutants.RescueCountsAnAttempt, SIMULATION, COUNTED),
    MutantCase("rescue", mutants.RescueIgnoresCancel, SIMULATION, ANSWER),
    MutantCase("cancel", mutants.CancelsRunningTasks, SIMULATION, ONE_COMMIT),
    MutantCase("requeue", mutants.RequeueKeepsAttempts, SIMULATION, ANSWER),
    MutantCase("enqueue", mutants.IgnoresKeys, SIMULATION, ANSWER),
    MutantCase("limits", mutants.IgnoresRunningTasks, SIMULATION, CLAIMED_RIGHT),
    MutantCase("sweep", mutants.NeverSweeps, SIMULATION, WOKEN),
    MutantCase("sweep", mutants.SweepsAllSuspended, SIMULATION, WOKEN),
    MutantCase("admit", limit_mutants.SavesUpBudget, SIMULATION, STARTS, seed=300, has_limits=True),
    MutantCase("admit", limit_mutants.ForgetsEarlierStarts, SIMULATION, STARTS, seed=440, has_limits=True),
    MutantCase("commit", limit_mutants.RequestsNothingAtTheEnd, SIMULATION, REST, has_limits=True),
    MutantCase("requeue", limit_mutants.RequeueSkipsLimit, SIMULATION, ANSWER, has_limits=True),
    MutantCase("wake due", limit_mutants.WakeDueSkipsLimit, SIMULATION, EXCEEDED, has_limits=True),
    MutantCase("wake", limit_mutants.WakeSkipsLimit, SIMULATION, EXCEEDED, seed=30, has_limits=True),
]
MAX_SEEDS = 200  # of the simulation, until an engine is caught
