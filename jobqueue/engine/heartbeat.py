"""Heartbeat: an executor says that it lives, and sees what it holds."""

from __future__ import annotations

from jobqueue.engine.clock import Clock
from jobqueue.engine.ground import Ground
from jobqueue.models import Executor
from jobqueue.outcome import Held, Sign


class Heartbeat(Ground):
    def heartbeat(self, sign: Sign) -> list[Held]:
        """
        Write the executor's sign of life and see what it holds.

        Locks: the executor's own row, until the statement ends. Task rows are only read, so that a
        sender's long transaction cannot keep a healthy executor from beating.
        """
        beat = self.executors.filter(pk=sign.executor_id).update(heartbeat=Clock(), state=sign.state)
        if not beat:
            self._write_executor(sign)
        rows = self.tasks.running().filter(executor_id=sign.executor_id)
        return [
            Held(id=pk, claim_number=number, is_cancel_requested=requested is not None)
            for pk, number, requested in rows.values_list("pk", "claim_number", "cancel_requested_at")
        ]

    def _write_executor(self, sign: Sign) -> None:
        """Insert the executor's row with a heartbeat of now, unless somebody just did."""
        now = self.now()
        row = Executor(
            id=sign.executor_id,
            backend=self.alias,
            name=sign.name,
            host=sign.host,
            pid=sign.pid,
            versions=dict(sign.versions),
            queues=list(sign.queues),
            queue_limits=dict(sign.queue_limits),
            slots=sign.slots,
            started_at=now,
            heartbeat=now,
            state=sign.state,
        )
        self.executors.bulk_create([row], ignore_conflicts=True)
