"""Heartbeat: an executor says that it lives, and sees what it holds."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from jobqueue.engine.clock import Clock
from jobqueue.engine.ground import Ground
from jobqueue.models import Executor
from jobqueue.records import Command, ExecutorInfo, OwnedTask


class Heartbeat(Ground):
    def heartbeat(self, sign: ExecutorInfo) -> list[OwnedTask]:
        """
        Write the executor's sign of life and see what it holds.

        Locks: the executor's own row, until the statement ends. If another session keeps that row locked, the engine of
        PostgreSQL inserts a spare heartbeat. Task rows are only read, so that a sender's long transaction cannot stop
        the heartbeat of a healthy executor.
        """
        beat = self.executors.filter(pk=sign.executor_id).update(heartbeat=Clock(), state=sign.state)
        if not beat:
            self._write_executor(sign)
        rows = self.tasks.running().filter(executor_id=sign.executor_id)
        return [
            OwnedTask(id=pk, claim_number=number, is_cancel_requested=requested is not None)
            for pk, number, requested in rows.values_list("pk", "claim_number", "cancel_requested_at")
        ]

    def command(self, executor_ids: Collection[UUID], command: Command) -> int:
        """
        Ask something of executors that have not stopped; returns how many. Each hears it within a second or so.

        Locks: their rows, on which they beat; not for a transaction that stays open.
        """
        rows = self.executors.filter(pk__in=executor_ids).exclude(state=Executor.State.STOPPED)
        return rows.update(command=command)

    def take_command(self, executor_id: UUID) -> Command | None:
        """Return the command for an executor, once. Locks: its row, if it has a command; a locked row is skipped."""
        row = self.executors.filter(pk=executor_id)
        with self.transaction():
            asked = self.unlocked(row.exclude(command="")).values_list("command", flat=True).first() or ""
            if asked:
                row.update(command="")
        return Command(asked) if asked in {*Command} else None

    def _write_executor(self, sign: ExecutorInfo) -> None:
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
