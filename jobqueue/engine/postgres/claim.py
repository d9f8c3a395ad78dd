"""Claim on PostgreSQL: one statement, as a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import starmap
from operator import attrgetter
from typing import Any
from uuid import UUID

from jobqueue.engine.claim import Claims
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_text_array
from jobqueue.values.records import ClaimedBatch, ClaimedTask, ClaimRequest
from jobqueue.values.states import PoolName

SURPLUS, MIN_SURPLUS = 2, 20  # a search reads limit * SURPLUS + MIN_SURPLUS tasks: others may have locked some
FEW_LOCKS = 200  # a claim that would lock no more unneeded rows than these does not search first
DEEPER = 4

Place = tuple[str, UUID]  # in the order of claiming: rank, id
END: Place = ("infinity", UUID(int=2**128 - 1))


def needs_horizon(request: ClaimRequest) -> bool:
    """Return whether a claim without a search locks too many rows: up to its limit in each queue."""
    return (len(request.queues) - SURPLUS) * request.limit > FEW_LOCKS  # with 100 queues it was four times as slow


class PostgresClaims(Claims):
    db: PostgresDatabase

    def claim(self, request: ClaimRequest) -> ClaimedBatch:
        # BEGIN and COMMIT took two fifths of the time of a claim.
        is_one_statement = not (request.is_empty or request.limited or needs_horizon(request))
        if is_one_statement and self.db.is_autocommit_safe():
            return self._claim_up_to(END, request)
        return super().claim(request)

    def _take_best(self, request: ClaimRequest) -> ClaimedBatch:
        if not needs_horizon(request):
            return self._claim_up_to(END, request)
        claims = ClaimedBatch()
        for pool, limit in request.limits.items():
            taken = Counter(claimed.queue_name for claimed in claims)
            left = {name: count - taken[name] for name, count in request.max_per_queue.items()}
            limit = min(limit, request.limit - len(claims))
            if limit > 0:
                pool_limits = {**dict.fromkeys(PoolName, 0), pool: limit}
                batch = self._claim_from_many(
                    replace(request, limit=limit, pool_limits=pool_limits, max_per_queue=left), pool
                )
                claims.is_truncated |= batch.is_truncated
                claims += batch
        return claims

    def _claim_from_many(self, request: ClaimRequest, pool: PoolName) -> ClaimedBatch:
        """Claim for one pool from many queues: first find the rank down to which to look."""
        passed, wanted = 0, SURPLUS * request.limit + MIN_SURPLUS
        while True:
            first, middle, last = self._horizon(request, pool, (1, passed + request.limit, wanted))
            if first == END:
                return ClaimedBatch()
            # The claim locks all rows that it reads, and other claims skip them: read as few as possible.
            claims = ClaimedBatch() if request.max_per_queue or request.limited else self._claim_up_to(middle, request)
            if len(claims) < request.limit and (last != middle or not claims):
                claims += self._claim_up_to(last, replace(request, limit=request.limit - len(claims)))
            claims.is_truncated = last != END and len(claims) < request.limit
            if claims or last == END:
                return claims
            passed, wanted = wanted, DEEPER * wanted  # others have locked all these tasks

    def _horizon(self, request: ClaimRequest, pool: PoolName, places: Sequence[int]) -> list[Place]:
        """Return the tasks at these places in the order of rank."""
        rows = self.db.query_prepared(
            "claim_horizon",
            pool=pool,
            places=list(places),
            wanted=places[-1],
            sample_size=places[-1] // len(request.queues) + 2,
            free_slots=request.free_slots.get(pool),
            **self._queue_parameters(request),
        )
        return [END if pk is None else (rank, pk) for rank, pk in rows]

    def _claim_up_to(self, last: Place, request: ClaimRequest) -> ClaimedBatch:
        limits = request.limits
        rows = self.db.query_prepared(
            "claim",
            claim_limit=request.limit,
            executor_id=request.executor_id,
            pools=as_array(limits),
            pool_limits=as_array(limits.values()),
            free_slots=as_array(request.free_slots.get(pool, limit) for pool, limit in limits.items()),
            last_rank=last[0],
            last_id=last[1],
            **self._queue_parameters(request),
        )
        # RETURNING has no order.
        return ClaimedBatch(sorted(starmap(ClaimedTask, rows), key=attrgetter("rank", "id.int")))

    def _queue_parameters(self, request: ClaimRequest) -> dict[str, Any]:
        limits = request.max_per_queue
        return {
            "queues": as_text_array(tuple(request.queues)),
            "max_tasks": [limits.get(name) for name in request.queues] if limits else "{}",
            "limited": as_text_array(tuple(request.limited)),
        }

    def _isolated(self, queues: Collection[str]) -> list[UUID]:
        # Not prepared: planned for these parameters, the statement uses the small index of isolated tasks.
        return [pk for (pk,) in self.db.query("isolated_tasks", queues=list(queues))]
