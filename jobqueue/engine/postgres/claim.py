"""Claim as statements of PostgreSQL: one in the rule, after a look where there are many queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap
from operator import attrgetter
from typing import Any
from uuid import UUID

from jobqueue.engine.portable.claim import Claimer
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.records import ClaimedBatch, ClaimedTask, ClaimRequest

SURPLUS, SURPLUS_LEAST = 2, 20  # what a claim looks for in many queues, in tasks it wants: others may hold some
FEW_LOCKS = 200  # a claim that would take no more than these for nothing does not look first
DEEPER = 4
PAST = 100_000  # so many tasks of other kinds a picky claim looks past, 30 ms: the executor does nothing else meanwhile
PAST_OF_EACH = 1_000  # at least, however many queues there are

Place = tuple[str, UUID]  # in the order of claiming: rank, id
NO_END: Place = ("infinity", UUID(int=2**128 - 1))


def wants_a_look(demand: ClaimRequest) -> bool:
    """Whether a claim that does not look first locks too many: of each queue as many as it wants of all."""
    return (len(demand.queues) - SURPLUS) * demand.limit > FEW_LOCKS  # with 100 queues it was four times as slow


class PostgresClaimer(Claimer):
    db: PostgresDatabase

    def claim(self, demand: ClaimRequest) -> ClaimedBatch:
        # BEGIN and COMMIT took two fifths of the worker's time for it.
        is_one_statement = demand.limit > 0 and demand.queues and not demand.limited and not wants_a_look(demand)
        if is_one_statement and self.db.is_autocommit_safe():
            return self._take_up_to(NO_END, demand)
        return super().claim(demand)

    def _take_best(self, demand: ClaimRequest) -> ClaimedBatch:
        if not wants_a_look(demand):
            return self._take_up_to(NO_END, demand)
        wanted, held = SURPLUS * demand.limit + SURPLUS_LEAST, 0
        while True:
            near, last, names = self._look(demand, wanted, held + demand.limit)
            asked = replace(demand, queues=names)
            # All that a claim looks at it locks, also what it leaves: to others it is as good as gone meanwhile.
            claims = self._take_up_to(near, asked) if names and not demand.most else ClaimedBatch()
            if names and len(claims) < demand.limit and (last != near or demand.most):
                claims += self._take_up_to(last, replace(asked, limit=demand.limit - len(claims)))
            claims.is_cut = last != NO_END and len(claims) < demand.limit
            if claims or last == NO_END:
                return claims
            held, wanted = wanted, DEEPER * wanted  # others hold all that was seen

    def _look(self, demand: ClaimRequest, wanted: int, near: int) -> tuple[Place, Place, list[str]]:
        """Find how far down in rank `near` of the best reach, and all that are seen, and in which queues they are."""
        ((near_rank, near_id, rank, pk, names),) = self._asker(demand)(
            "claim_horizon",
            wanted=wanted,
            near=near,
            glance=wanted // len(demand.queues) + 2,
            **self._claimable(demand),
        )
        return NO_END if near_id is None else (near_rank, near_id), NO_END if pk is None else (rank, pk), names

    def _take_up_to(self, last: Place, demand: ClaimRequest) -> ClaimedBatch:
        last_rank, last_id = last
        rows = self._asker(demand)(
            "claim",
            aging=float(self.db.options.aging),
            claim_limit=demand.limit,
            executor_id=demand.executor_id,
            last_rank=last_rank,
            last_id=last_id,
            **self._claimable(demand),
        )
        # RETURNING has no order.
        return ClaimedBatch(sorted(starmap(ClaimedTask, rows), key=attrgetter("rank", "id")))

    def _asker(self, demand: ClaimRequest) -> Callable[..., list[tuple[Any, ...]]]:
        """Suspects are few, and have an index: planned for them, not for any, a statement uses it."""
        return self.db.query if demand.suspects else self.db.query_prepared

    def _claimable(self, demand: ClaimRequest) -> dict[str, Any]:
        """Say which tasks a demand is about."""
        return {
            "backend": self.db.backend,
            "queues": list(demand.queues),
            "most": [demand.most.get(name) for name in demand.queues] if demand.most else [],
            "locked": list(demand.limited),
            "only": None if demand.only is None else list(demand.only),
            "but": None if demand.but is None else list(demand.but),
            "suspects": demand.suspects,
            "depth": max(PAST_OF_EACH, PAST // max(1, len(demand.queues))) if demand.is_picky else None,
        }

    def queues_in_use(self) -> list[str]:
        return sorted(name for (name,) in self.db.query_prepared("queues_in_use", backend=self.db.backend))

    def has_suspects(self, queues: Sequence[str]) -> bool:
        open_queues = sorted({*queues} - self.limits.full()) if queues else []
        return bool(open_queues and self.db.query("has_isolated", backend=self.db.backend, queues=open_queues))

    def is_drained(self, queues: Sequence[str] | None, within_seconds: float) -> bool:
        ((is_drained,),) = self.db.query(
            "is_drained",
            backend=self.db.backend,
            queues=self.queues_in_use() if queues is None else list(queues),
            only_these=queues is not None,
            within_seconds=float(within_seconds),
        )
        return bool(is_drained)
