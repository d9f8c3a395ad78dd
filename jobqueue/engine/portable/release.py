"""Release: claimed tasks become READY again, at their old rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from jobqueue.engine.portable.commit import Committer
from jobqueue.engine.portable.database import Database, Part
from jobqueue.failpoints import reach
from jobqueue.records import ClaimedTask, CommitResult, Outcome, Status, released


class Releaser(Part):
    def __init__(self, db: Database, committer: Committer) -> None:
        super().__init__(db)
        self.committer = committer

    def release(self, claims: Iterable[ClaimedTask]) -> CommitResult:
        """Make claimed tasks READY at their old rank, or CANCELLED if requested. No attempt is counted."""
        return self.committer.commit([released(claimed) for claimed in claims])

    def release_unknown_claims(self, executor_id: UUID, known: Collection[UUID]) -> int:
        """
        Release the tasks that an executor holds but does not know, because the answer to its claim was lost.

        known: the tasks that it knows. Only the thread that claims for this executor may call this: new claims of
        another thread would look like strays. Return how many were released.
        """
        columns = ("pk", "claim_number", "attempts", "parent_id", "unread_polls", "stale_polls")
        held = self.db.tasks.running().filter(executor_id=executor_id).order_by("executor_id").values_list(*columns)
        strays = [
            Outcome(
                task_id=pk,
                claim_number=claim_number,
                status=Status.READY,
                attempts=attempts,
                parent_id=parent_id,
                unread_polls=unread_polls,
                stale_polls=stale_polls,
                keeps_rank=True,
            )
            for pk, claim_number, attempts, parent_id, unread_polls, stale_polls in held
            if pk not in known
        ]
        if not strays:
            return 0
        reach("release.before")
        done = self.committer.commit(strays).done
        reach("release.after")
        return sum(status is Status.READY for status in done.values())
