"""Room in queues with a limit: who makes it fills it, or tells others of it."""

from __future__ import annotations

from collections import Counter

from jobqueue.executor.appetite import Appetite
from jobqueue.records import ClaimedBatch, ClaimRequest


class Room:
    """Belongs to the pulse's thread."""

    def __init__(self, appetite: Appetite) -> None:
        self._appetite = appetite
        self._made: Counter[str] = Counter()

    def made(self, queue: str) -> None:
        """A task of the queue has left our hands."""
        if queue in self._appetite.limits:
            self._made[queue] += 1

    def to_tell(self, demand: ClaimRequest, claims: ClaimedBatch) -> set[str]:
        """
        Name the queues, after a turn of the loop, of which others should hear that there is room.

        Nobody need hear where our own claim has filled it, or found nothing more that waits.
        """
        if not self._made:
            return set()
        if demand.limit == 0 and self._appetite.grow():
            return set()  # the next turn claims
        left = {queue for queue, count in self._made.items() if not _is_filled(queue, count, demand, claims)}
        self._made.clear()
        return left & self._appetite.limited


def _is_filled(queue: str, count: int, demand: ClaimRequest, claims: ClaimedBatch) -> bool:
    taken = sum(claimed.queue_name == queue for claimed in claims)
    if taken >= count:
        return True
    could_take_more = len(claims) < demand.limit and taken < demand.most.get(queue, demand.limit)
    return queue in demand.queues and queue not in claims.busy and could_take_more
