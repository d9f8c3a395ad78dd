"""Executors as statements of PostgreSQL."""

from __future__ import annotations

from itertools import starmap
from uuid import UUID

from django.db import DatabaseError

from jobqueue.engine.executors import Executors
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.timeouts import is_locked, is_slow
from jobqueue.values.records import ExecutorInfo, OwnedTask, PendingWork


class PostgresExecutors(Executors):
    db: PostgresDatabase

    def pending_maintenance(self, executor_id: UUID) -> PendingWork:
        (row,) = self.db.query_prepared("pending_maintenance", executor_id=executor_id)
        return PendingWork(*row)

    def heartbeat(self, executor: ExecutorInfo) -> list[OwnedTask] | None:
        ((is_registered,),) = self.db.query(
            "heartbeat",
            executor_id=executor.executor_id,
            state=str(executor.state),
            waiting_for_connections=executor.waiting_for_connections,
            problem=executor.problem,
        )
        if not is_registered:
            self._write_executor(executor)
        try:
            return [*starmap(OwnedTask, self.db.query("tasks_of_executor", executor_id=executor.executor_id))]
        except DatabaseError as error:
            if not is_locked(error) and not is_slow(error):
                raise
            return None

    def _holders(self) -> dict[UUID, float | None]:
        return dict(self.db.query_prepared("executors_with_running_tasks"))
