"""Release: tasks go back unharmed, to their old place in the order."""

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
        """Hand tasks back READY at their old place, no attempt counted (CANCELLED where that was asked for)."""
        return self.committer.commit([released(claimed) for claimed in claims])

    def release_strays(self, executor_id: UUID, known: Collection[UUID]) -> int:
        """
        Hand back what an executor holds without knowing: tasks whose claim was cut off before its answer.

        known: the tasks it knows of. Only for the one thread that claims for this executor; another's
        fresh claims would look like strays. Returns how many went back.
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
