"""The checkpoints of functions: what the next attempt of a task begins with."""

from __future__ import annotations

from uuid import UUID

from jobqueue.engine.database import Part, json_from
from jobqueue.exceptions import ClaimLost
from jobqueue.values.records import ClaimedTask
from jobqueue.values.states import Status


class Checkpoints(Part):
    def store(self, claimed: ClaimedTask, executor_id: UUID, state: str) -> None:
        """
        Store the state of a running function, as JSON text, in the caller's transaction or in one of its own.

        Raises ClaimLost, and writes nothing, if the executor does not hold the claim any more.
        Locks: the task's row FOR NO KEY UPDATE, waiting for others.
        """
        with self.db.transaction():
            columns = "pk", "status", "claim_number", "executor_id"
            row = self.db.lock([claimed.id], wait=True).only(*columns).first()
            is_ours = row is not None and row.status == Status.RUNNING and row.executor_id == executor_id
            if row is None or not is_ours or row.claim_number != claimed.claim_number:
                raise ClaimLost
            self.db.by_ids([claimed.id]).update(inner_state=json_from(state))
