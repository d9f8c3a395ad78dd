"""Release: tasks go back unharmed, to their old place in the order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from jobqueue.engine.claim import Claim
from jobqueue.engine.commit import Commit
from jobqueue.failpoints import reach
from jobqueue.records import ClaimedTask, CommitResult, Status, released


class Release(Claim, Commit):
    def release(self, claims: Iterable[ClaimedTask]) -> CommitResult:
        """Hand tasks back READY at their old place, no attempt counted (CANCELLED where that was asked for)."""
        return self.commit([released(claimed) for claimed in claims])

    def release_strays(self, executor_id: UUID, known: Collection[UUID]) -> int:
        """
        Hand back what an executor holds without knowing: tasks whose claim was cut off before its answer.

        known: the tasks it knows of. Only for the one thread that claims for this executor; another's
        fresh claims would look like strays. Returns how many went back.
        """
        held = self.tasks.running().filter(executor_id=executor_id).order_by("executor_id")
        strays = set(held.values_list("pk", flat=True)).difference(known)
        if not strays:
            return 0
        reach("release.before")
        done = self.release(self._read_claimed(list(strays))).done
        reach("release.after")
        return sum(status is Status.READY for status in done.values())
