"""The engine, deliberately broken: each in one way that looks right, and must be caught by the stepper."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from jobqueue.engine.clock import Clock, rank_from
from jobqueue.engine.postgresql import PostgresEngine


class WakesWithoutLocking(PostgresEngine):
    """Skips what is RUNNING in its snapshot, although that commit is about to suspend it."""

    def wake(self, ids: Iterable[UUID]) -> int:
        suspended = self.tasks.suspended().filter(pk__in=list(ids))
        return suspended.update(status="READY", rank=rank_from(Clock(), self.options.aging), wake_at=None)
