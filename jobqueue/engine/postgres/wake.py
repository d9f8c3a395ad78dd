"""Wake as statements of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from jobqueue.engine.portable.wake import Waker
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array
from jobqueue.failpoints import failpoint
from jobqueue.records import WakeResult

WAKE_LOCK_TIMEOUT = "1s"


class PostgresWaker(Waker):
    db: PostgresDatabase

    def wake_due(self, limit: int = 1000) -> WakeResult:
        following = self._seconds_to_alarm()
        if following is None or following > 0.0:  # usually: one statement instead of a transaction
            return WakeResult(count=0, next_seconds=following)
        with self.db.transaction():
            count = self.db.execute(
                "wake_due", backend=self.db.backend, wake_limit=limit, aging=float(self.db.options.aging)
            )
            following = self._seconds_to_alarm()
            if count:
                failpoint("due.before")
        return WakeResult(count=count, next_seconds=following)

    def _seconds_to_alarm(self) -> float | None:
        rows = self.db.query_prepared("next_wake_at", backend=self.db.backend)
        return rows[0][0] if rows else None

    def wake(self, ids: Iterable[UUID]) -> int:
        """As the portable verb, but raise OperationalError after waiting a second for a lock."""
        with self.db.transaction():
            ((before,),) = self.db.query("lock_timeout", wait=WAKE_LOCK_TIMEOUT)
            woken = super().wake(ids)
            self.db.query("lock_timeout", wait=before)  # for the rest of a caller's transaction
        return woken

    def wake_locked(self, ids: Collection[UUID]) -> int:
        return len(self.db.query_prepared("wake", ids=as_array(ids), aging=float(self.db.options.aging))) if ids else 0

    def _suspended_with_messages(self, limit: int) -> list[UUID]:
        return [
            pk
            for (pk,) in self.db.query_prepared("suspended_with_messages", backend=self.db.backend, sweep_limit=limit)
        ]
