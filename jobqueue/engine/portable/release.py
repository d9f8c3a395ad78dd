"""Release: claimed tasks become READY again, at their old rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from jobqueue.engine.portable.commit import Committer
from jobqueue.engine.portable.database import Database, Part
from jobqueue.failpoints import failpoint
from jobqueue.records import ClaimedTask, CommitResult, Status, release_outcome


class Releaser(Part):
    def __init__(self, db: Database, committer: Committer) -> None:
        super().__init__(db)
        self.committer = committer

    def release(self, claims: Iterable[ClaimedTask]) -> CommitResult:
        """Make claimed tasks READY at their old rank, or CANCELLED if requested. No attempt is counted."""
        return self.committer.commit([release_outcome(claimed) for claimed in claims])

    def release_unknown_claims(self, executor_id: UUID, known: Collection[UUID]) -> int:
        """
        Release the tasks that an executor holds without knowing it, because the answer to its claim was lost.

        Return how many. known: the tasks that it knows. Only the thread that claims for this executor may call this:
        it would also release new claims of another thread.
        """
        columns = ("pk", "claim_number", "attempts", "parent_id", "unread_polls", "stale_polls")
        tasks = self.db.tasks.running().filter(executor_id=executor_id).order_by("executor_id").only(*columns)
        unknown = [release_outcome(task) for task in tasks if task.pk not in known]
        if not unknown:
            return 0
        failpoint("release.before")
        done = self.committer.commit(unknown).done
        failpoint("release.after")
        return sum(status is Status.READY for status in done.values())
