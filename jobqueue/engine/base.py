"""Every verb of the queue in the ORM, correct on any database that Django supports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db import DatabaseError

from jobqueue.engine.cancel import Cancel
from jobqueue.engine.commit import REFUSALS, is_refusal
from jobqueue.engine.gauges import Gauge
from jobqueue.engine.prune import Prune
from jobqueue.engine.release import Release
from jobqueue.engine.requeue import Requeue
from jobqueue.engine.rescue import Rescue
from jobqueue.failpoints import reach
from jobqueue.records import ClaimedBatch, ClaimRequest, CommitResult, Outcome, PendingWork


class Engine(Prune, Gauge, Release, Rescue, Cancel, Requeue):
    """
    The queue of one backend on one database: one verb or two in each file of this package.

    All verbs take the database's clock. Those that lock several rows lock them in id order first
    and look afterwards, so that none deadlocks with another (tests/engine/test_races.py).
    """

    def commit_and_claim(self, outcomes: Sequence[Outcome], demand: ClaimRequest) -> tuple[CommitResult, ClaimedBatch]:
        """Commit what has finished and claim what fits, in one transaction: one flush of the log for both."""
        is_hungry = demand.limit > 0 and bool(demand.queues)
        if not (outcomes and is_hungry):
            return self.commit(outcomes, holder=demand.executor_id), self.claim(demand)
        try:
            with self.transaction():
                committed, claimed = self._commit(outcomes, holder=demand.executor_id), self._claim(demand)
                reach("commit.before")
                if claimed:
                    reach("claim.before")
                return committed, claimed
        except (DatabaseError, *REFUSALS) as error:
            if not is_refusal(error):
                raise
        return self.commit(outcomes, holder=demand.executor_id), self.claim(demand)

    def pending_maintenance(self, executor_id: UUID) -> PendingWork:
        """Say what upkeep may find to do, so that it need not look everywhere. Locks: none."""
        return PendingWork()

    def notify(self, queues: Iterable[str]) -> None:
        """Hint to waiting executors that these queues have work; does nothing where the database cannot."""
