"""Claim READY tasks for an executor. On PostgreSQL: engine/postgres/claim.py, and claim.sql."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from jobqueue.engine.database import RAW, Part, with_texts
from jobqueue.engine.queues import Queues
from jobqueue.engine.tasks import LockedRow
from jobqueue.models import ISOLATION_LOSSES, Task
from jobqueue.models.clock import Clock
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import ClaimedBatch, ClaimedTask, ClaimRequest
from jobqueue.values.states import PoolName, Status

# Fields of a ClaimedTask that are columns of its row.
SAME_COLUMNS = tuple(
    name for name in ClaimedTask.__struct_fields__ if name not in (*RAW, "claimed_at", "wait_seconds", "is_expired")
)
ISOLATED_READ = 10  # other executors may have locked the first ones


@dataclass(eq=False)
class Claims(Part):
    queues: Queues

    def claim(self, request: ClaimRequest) -> ClaimedBatch:
        """
        Claim at most `limit` READY tasks for an executor, best rank first.

        Skips paused queues, obeys max_running, and leaves isolated tasks to claim_isolated(). A commit must present
        the claim_number of its task.
        Locks: the rows of the limited queues, then those of the tasks, skipping locked ones.
        """
        if request.is_empty:
            return ClaimedBatch()
        with self.db.transaction():
            claimed = self.take(request)
            if claimed:
                failpoint("claim.before")
            return claimed

    def claim_isolated(self, request: ClaimRequest) -> ClaimedBatch:
        """
        Claim the best READY task that has to run alone, for either pool.

        Locks: as claim().
        """
        with self.db.transaction():
            if request.limited:
                request, _ = self.queues.within_limits(request)
            full = {name for name, maximum in request.max_per_queue.items() if maximum <= 0}
            unlocked = {*self.queues.limited_queues()} - {*request.limited}
            for pk in self._isolated({*request.queues} - full - unlocked):
                for number in self.db.lock([pk]).values_list("claim_number", flat=True):
                    if self._take(pk, number, request.executor_id):
                        failpoint("claim.before")
                        return ClaimedBatch(self.read_claimed([pk]))
        return ClaimedBatch()

    def take(self, request: ClaimRequest) -> ClaimedBatch:
        if not request.limited:
            return self._take_best(request)
        request, locked = self.queues.within_limits(request)
        claims = self._take_best(request)
        claims.locked_queues = locked
        return claims

    def _take_best(self, request: ClaimRequest) -> ClaimedBatch:
        unlocked = {*self.queues.limited_queues()} - {*request.limited}
        queues = {*request.queues} - self.queues.paused() - unlocked
        restricted = queues & {*request.max_per_queue, *request.limited}
        candidates: list[tuple[Any, ...]] = []
        for pool, limit in request.limits.items():
            candidates += self._best(pool, queues - restricted)[:limit]
            for name in restricted:
                free = request.free_slots.get(pool, limit) if name in request.limited else limit
                candidates += self._best(pool, {name})[
                    : max(0, min(limit, free, request.max_per_queue.get(name, limit)))
                ]
        of_queue: Counter[str] = Counter(request.max_per_queue)
        of_pool: Counter[str] = Counter({str(pool): limit for pool, limit in request.limits.items()})
        taken: list[UUID] = []
        for _, pk, number, name, pool_name in sorted(candidates, key=itemgetter(0, 1)):
            has_room = of_pool[pool_name] > 0 and (name not in request.max_per_queue or of_queue[name] > 0)
            if has_room and len(taken) < request.limit and self._take(pk, number, request.executor_id):
                taken.append(pk)
                of_pool[pool_name] -= 1
                of_queue[name] -= 1
        return ClaimedBatch(self.read_claimed(taken))

    def _best(self, pool: PoolName, queues: Collection[str]) -> QuerySet[Task, tuple[Any, ...]]:
        """Select and lock the tasks of some queues that may be claimed, best rank first."""
        candidates = self.db.tasks.ready().filter(
            executor_losses__lt=ISOLATION_LOSSES, queue_name__in=queues, pool=pool
        )
        candidates = self.db.with_lock(candidates.order_by("rank", "pk"))
        return candidates.values_list("rank", "pk", "claim_number", "queue_name", "pool")

    def move_to_pool(self, ids: Iterable[UUID], pool: PoolName) -> None:
        """
        Correct the pool of tasks that run in another one.

        They were enqueued by SQL, or by other code, before or after the function became `async def`.
        Locks: the rows, skipping locked ones.
        """
        with self.db.transaction():
            self.db.by_ids([row.pk for row in self.db.lock(ids)]).update(pool=pool)

    def claim_one(self, pk: UUID, executor_id: UUID) -> ClaimedTask | None:
        """Claim one READY task by id. Return None if it is not READY. Locks: the row, waiting for others."""
        with self.db.transaction():
            number = self.db.tasks.filter(pk=pk).values_list("claim_number", flat=True).first()
            is_taken = number is not None and self._take(pk, number, executor_id)
            return self.read_claimed([pk])[0] if is_taken else None

    def lock_claim(self, claimed: ClaimedTask, holder: UUID | None = None) -> bool:
        """
        Lock a claimed task in the caller's transaction, waiting for others. Return False when the claim is lost.

        holder: as in commit().
        Locks: the row FOR NO KEY UPDATE.
        """
        rows = self.db.lock([claimed.id], wait=True).only("pk", "status", "claim_number", "executor_id")
        return any(is_held(row, claimed.claim_number, holder) for row in rows)

    def _take(self, pk: UUID, number: int, executor_id: UUID) -> bool:
        """Claim a task unless another executor was faster: some databases cannot lock rows."""
        changed = self.db.tasks.ready().filter(pk=pk, claim_number=number)
        return bool(
            changed.update(
                status=Status.RUNNING,
                claim_number=F("claim_number") + 1,
                executor_id=executor_id,
                wake_at=None,
                claimed_at=Clock(),
                started_at=Coalesce("started_at", Clock()),
                last_attempted_at=Clock(),
            )
        )

    def read_claimed(self, ids: Sequence[UUID]) -> list[ClaimedTask]:
        if not ids:
            return []
        rows = with_texts(self.db.tasks.filter(pk__in=ids).order_by("rank", "pk"))
        now = self.db.now()
        return [
            ClaimedTask(
                **{name: getattr(row, name) for name in SAME_COLUMNS},
                **{name: getattr(row, f"{name}_text") for name in RAW},
                claimed_at=row.claimed_at or now,
                wait_seconds=max(0.0, (now - row.rank).total_seconds() - row.priority * self.db.options.aging),
                is_expired=row.expires_at is not None and row.expires_at <= now and row.polls == 0,
            )
            for row in rows
        ]

    def has_isolated(self, queues: Collection[str]) -> bool:
        """Return whether a READY task that must run alone is in a queue that is neither paused nor full."""
        open_queues = {*queues} - self.queues.full() if queues else set()
        return bool(open_queues and self._isolated(open_queues))

    def _isolated(self, queues: Collection[str]) -> list[UUID]:
        """Find READY tasks that must run alone, best rank first, in queues that are not paused."""
        tasks = self.db.tasks.ready().filter(
            executor_losses__gte=ISOLATION_LOSSES, queue_name__in={*queues} - self.queues.paused()
        )
        return list(tasks.order_by("rank", "pk").values_list("pk", flat=True)[:ISOLATED_READ])


def is_held(row: Task | LockedRow | None, claim_number: int, holder: UUID | None) -> bool:
    """Return whether a locked row still belongs to a claim. holder: as in commit()."""
    return (
        row is not None
        and row.status == Status.RUNNING
        and row.claim_number == claim_number
        and holder in (None, row.executor_id)
    )
