"""Decide how much to claim, from which queues, and when."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from uuid import UUID

from jobqueue.engine import Engine
from jobqueue.executor.pools.base import Pool
from jobqueue.executor.running.attempt import RunningTask
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.values.records import ClaimedBatch, ClaimRequest
from jobqueue.values.states import PoolName

CLAIM_AGAIN_SECONDS = 0.01  # after a notification, which may stand for others that were sent within 5 ms
QUEUES_SECONDS = 0.85  # how long to remember which queues are in use, and which have a limit; each idle poll reads them
QUEUES_GAP_SECONDS = 0.005  # the same after claim_soon(); less than CLAIM_AGAIN_SECONDS
LOCKED_QUEUE_SECONDS = 0.05  # another executor claims from a queue with a limit; that takes a moment
PROBE = 10  # tasks to ask for when a pool's last claim found too few: a claim for many costs more in several queues
AT_ONCE, NEVER = float("-inf"), float("inf")


class ClaimPolicy:
    """
    The content and the time of the next claim.

    Each pool asks for as many tasks as it can take. It asks again at once when it got all it asked for, when a
    notification came since its last claim, and with each commit; otherwise after POLL_INTERVAL.

    Any thread may call on_notification() and claim_soon(), only the loop's thread the rest. Each timestamp has one
    writing thread. So a notification during a claim is not lost.
    running: returns the tasks that count against the limits of their queues.

    It has more than 15 attributes because each reason to claim has a time of its own.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ExecutorSettings,
        executor_id: UUID,
        pools: Mapping[PoolName, Pool],
        running: Callable[[], Iterable[RunningTask]],
    ) -> None:
        self._engine, self._settings, self._pools, self._running = engine, settings, pools, running
        self._nothing = ClaimRequest(executor_id=executor_id, queues=(), limit=0)
        self._notified_at, self._poked_at = time.monotonic(), AT_ONCE
        self._notified: dict[str, float] = {}  # when each queue was last named in a notification
        # When the last claim for a pool began; AT_ONCE if it got all that it asked for, and there may be more.
        self._claimed_at = dict.fromkeys(pools, AT_ONCE)
        self._next_poll_at = AT_ONCE
        self._queues: list[str] = []
        self._queues_read_at = self._limits_read_at = AT_ONCE
        self._limited: frozenset[str] = frozenset()  # queues that have a max_running
        self._restricted = frozenset(settings.queue_limits)  # those, and the ones that this process limits
        self._is_urgent = False  # in request(): the claim is for a task that became READY just now
        self._is_outdated = False  # the last claim did not wait until queues and limits were read again
        self._ended: Counter[str] = Counter()  # how many tasks of such queues have left this process

    def on_notification(self, queue: str) -> bool:
        """Note that a queue has work. Return whether this executor serves it."""
        if not self.serves(queue):
            return False
        self._notified[queue] = self._notified_at = time.monotonic()
        return True

    def expect(self, queue: str) -> None:
        """Include a queue in the next claim, although it may have no READY task yet."""
        self._notified[queue] = time.monotonic()

    def serves(self, queue: str) -> bool:
        return self._settings.queues is None or queue in self._settings.queues

    def claim_soon(self) -> None:
        """Claim from all queues soon: one may have work, perhaps one that was not in use before."""
        self._notified_at = self._poked_at = time.monotonic()

    @property
    def is_satisfied(self) -> bool:
        """Whether the last claims found no more work, and no notification came since."""
        return not any(self._is_due(name) for name in self._pools)

    def _is_due(self, name: PoolName) -> bool:
        return self._notified_at >= self._claimed_at[name]

    # --- when

    def wait_seconds(self, budget: int) -> float:
        """Return how long to wait for a notification before the next claim."""
        limits = self._pool_limits(budget)
        return max(0.0, self._next_claim_at(limits) - time.monotonic()) if any(limits.values()) else NEVER

    def _next_claim_at(self, limits: Mapping[PoolName, int]) -> float:
        pools = [name for name, limit in limits.items() if limit > 0]
        if any(self._is_due(name) for name in pools):
            return AT_ONCE
        again_at = self._notified_at + CLAIM_AGAIN_SECONDS
        return min([self._next_poll_at, *(again_at for name in pools if self._claimed_at[name] < again_at)])

    # --- what

    def request(self, budget: int, *, with_commit: bool) -> ClaimRequest:
        """
        Return the request for a claim now. It is empty if no pool can take a task, or no claim is due.

        budget: how many tasks this process may still take. with_commit: outcomes are committed anyway, in the same
        transaction.
        """
        limits = self._pool_limits(budget)
        if not any(limits.values()) or not (with_commit or time.monotonic() >= self._next_claim_at(limits)):
            return self._nothing
        limit = min(budget, sum(limits.values()))
        self._is_urgent = self._limits_read_at > AT_ONCE and any(self._is_due(name) for name in self._pools)
        try:
            request = replace(self._nothing, queues=self.queues(), limit=limit, pool_limits=limits)
            return self._within_queue_limits(request)
        finally:
            self._is_urgent = False

    def _pool_limits(self, budget: int) -> dict[PoolName, int]:
        return {
            name: min(budget, pool.capacity(), PROBE if self._claimed_at[name] > AT_ONCE else budget)
            for name, pool in self._pools.items()
        }

    def queues(self) -> Sequence[str]:
        """Return the queues to claim from."""
        if self._settings.queues is not None:
            return self._settings.queues
        now = time.monotonic()
        # A task that became READY just now may be the only one of its queue.
        remembered_seconds = QUEUES_GAP_SECONDS if self._poked_at > self._queues_read_at else QUEUES_SECONDS
        if now - self._queues_read_at >= remembered_seconds and not self._puts_off(remembered_seconds):
            # One notification stands for all of its 5 ms. Its queue may look empty between two of these tasks.
            for queue in [queue for queue, at in self._notified.copy().items() if now - at >= QUEUES_SECONDS]:
                del self._notified[queue]
            self._queues, self._queues_read_at = self._engine.queues.queues_in_use(), now
        return sorted({*self._queues, *self._notified})

    def _within_queue_limits(self, request: ClaimRequest) -> ClaimRequest:
        """
        Claim no more of a queue than this process may run.

        Of a queue with a max_running, claim only what starts at once, because a task that waits in a buffer counts as
        running, while other executors may have free slots. But one task may wait for a slot. Otherwise a backlog of
        short tasks from other queues would keep the buffer full, and this queue would never have its turn.
        """
        self._read_limits()
        if not self._restricted:
            return request
        tasks = [task for task in self._running() if task.claimed.queue_name in self._restricted]
        running = Counter(task.claimed.queue_name for task in tasks)
        waiting = {task.claimed.queue_name for task in tasks if task.started_at is None} & self._limited
        limits = {name: limit - running[name] for name, limit in self._settings.queue_limits.items()}
        queues = [queue for queue in request.queues if limits.get(queue, 1) > 0 and queue not in waiting]
        return replace(
            request,
            queues=queues,
            max_per_queue={name: limit for name, limit in limits.items() if name in queues},
            limited=[queue for queue in queues if queue in self._limited],
            free_slots={name: max(1, pool.free_slots()) for name, pool in self._pools.items()},
        )

    def _read_limits(self) -> None:
        now = time.monotonic()
        if now - self._limits_read_at >= QUEUES_SECONDS and not self._puts_off(QUEUES_SECONDS):
            self._limited, self._limits_read_at = frozenset(self._engine.queues.limited_queues()), now
            self._restricted = self._limited.union(self._settings.queue_limits)

    def _puts_off(self, remembered_seconds: float) -> bool:
        """Return whether a claim comes before the look at queues and limits, so that a new task does not wait."""
        self._is_outdated = self._is_urgent and remembered_seconds == QUEUES_SECONDS
        return self._is_outdated

    def refresh(self) -> None:
        """Read what the last claim did not wait for. If it has changed, claim again to find tasks that were missed."""
        if not self._is_outdated:
            return
        self._is_outdated = False
        before = self._queues, self._limited
        self.queues()
        self._read_limits()
        if before != (self._queues, self._limited):
            self._notified_at = time.monotonic()

    def limited(self, queues: Sequence[str]) -> Sequence[str]:
        """Return those of the queues that have a max_running."""
        self._read_limits()
        return [queue for queue in queues if queue in self._limited]

    # --- what came of it

    def claimed(self, request: ClaimRequest, claims: ClaimedBatch, began_at: float) -> None:
        """Record the answer to a request. If a pool was asked for nothing, its values stay."""
        if request.limit == 0:
            return
        of_pool = Counter(map(attrgetter("pool"), claims))
        is_full = claims.is_truncated or len(claims) >= request.limit
        for name, limit in request.pool_limits.items():
            if limit > 0:
                self._claimed_at[name] = AT_ONCE if is_full or of_pool[name] >= limit else began_at
        interval = self._settings.poll_interval or self._engine.options.poll_interval
        seconds = LOCKED_QUEUE_SECONDS if claims.locked_queues else interval * random.uniform(0.9, 1.1)
        self._next_poll_at = time.monotonic() + seconds

    # --- queues that are below their limit again

    def ended(self, queues: Iterable[str]) -> None:
        """Record that tasks of these queues have left this process."""
        if self._restricted:
            self._ended.update(queue for queue in queues if queue in self._restricted)

    def queues_below_limit(self, request: ClaimRequest, claims: ClaimedBatch) -> set[str]:
        """
        Return the limited queues of which other executors should be notified: a task of this process has ended there.

        Without those from which its own claim took as many tasks, or found no more.
        """
        if not self._ended:
            return set()
        if request.limit == 0 and max(self._claimed_at.values()) > AT_ONCE:
            self._claimed_at = dict.fromkeys(self._pools, AT_ONCE)  # the next turn of the loop claims
            return set()
        below = {queue for queue, count in self._ended.items() if not _is_filled(queue, count, request, claims)}
        self._ended.clear()
        return below & self._limited


def _is_filled(queue: str, count: int, request: ClaimRequest, claims: ClaimedBatch) -> bool:
    taken = sum(claimed.queue_name == queue for claimed in claims)
    if taken >= count:
        return True
    could_take_more = len(claims) < request.limit and taken < request.max_per_queue.get(queue, request.limit)
    return queue in request.queues and queue not in claims.locked_queues and could_take_more
