"""Claim as statements of PostgreSQL: one in the rule, after a look where there are many queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from operator import attrgetter
from typing import Any
from uuid import UUID

from jobqueue.engine.health import QUEUES_READ, TASKS_READ
from jobqueue.engine.statements import Statements
from jobqueue.records import ClaimedBatch, ClaimedTask, ClaimRequest, QueueLatency

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


class ClaimStatements(Statements):
    def claim(self, demand: ClaimRequest) -> ClaimedBatch:
        # BEGIN and COMMIT took two fifths of the worker's time for it.
        is_one_statement = demand.limit > 0 and demand.queues and not demand.limited and not wants_a_look(demand)
        if is_one_statement and self.are_statements_transactions():
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
            aging=float(self.options.aging),
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
        return self.rows if demand.suspects else self.hot_rows

    def _claimable(self, demand: ClaimRequest) -> dict[str, Any]:
        """Say which tasks a demand is about."""
        return {
            "backend": self.alias,
            "queues": list(demand.queues),
            "most": [demand.most.get(name) for name in demand.queues] if demand.most else [],
            "locked": list(demand.limited),
            "only": None if demand.only is None else list(demand.only),
            "but": None if demand.but is None else list(demand.but),
            "suspects": demand.suspects,
            "depth": max(PAST_OF_EACH, PAST // max(1, len(demand.queues))) if demand.is_picky else None,
        }

    def _lock_queues(self, names: Collection[str]) -> dict[str, int | None]:
        return dict(self.hot_rows("lock_queues", backend=self.alias, queues=list(names)))

    def _count_running(self, most: Mapping[str, int]) -> dict[str, int]:
        return dict(self.hot_rows("count_running", backend=self.alias, queues=list(most), most=list(most.values())))

    def queues_in_use(self) -> list[str]:
        return sorted(name for (name,) in self.hot_rows("queues_in_use", backend=self.alias))

    def limited_queues(self) -> list[str]:
        return sorted(name for (name,) in self.hot_rows("limited_queues", backend=self.alias))

    def has_suspects(self, queues: Sequence[str]) -> bool:
        open_queues = sorted({*queues} - self._full()) if queues else []
        return bool(open_queues and self.rows("has_isolated", backend=self.alias, queues=open_queues))

    def is_drained(self, queues: Sequence[str] | None, within_seconds: float) -> bool:
        ((is_drained,),) = self.rows(
            "is_drained",
            backend=self.alias,
            queues=self.queues_in_use() if queues is None else list(queues),
            only_these=queues is not None,
            within_seconds=float(within_seconds),
        )
        return bool(is_drained)

    def _draining(self) -> list[QueueLatency]:
        rows = self.rows(
            "queue_latency",
            backend=self.alias,
            aging=float(self.options.aging),
            timeout=float(self.options.heartbeat_timeout),
            queues=self.queues_in_use()[:QUEUES_READ],
            task_limit=TASKS_READ,
        )
        return [
            QueueLatency(queue_name=name, oldest_seconds=seconds, is_paused=is_paused, is_served=is_served)
            for name, seconds, is_paused, is_served in rows
        ]
