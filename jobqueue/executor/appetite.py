"""How much to claim, of what, and when to look again."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from jobqueue.engine.engine import Engine
from jobqueue.executor.crew import Crew
from jobqueue.executor.hold import Hold
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.suspects import Suspects
from jobqueue.records import ClaimedBatch, ClaimRequest

LOOK_AGAIN_SECONDS = 0.01  # after a notice: others may have been left out in its 5 ms
QUEUES_SECONDS = 0.85  # between looks which queues are in use, and which have a limit; each poll of the idle is one
QUEUES_GAP_SECONDS = 0.005  # the same when somebody has spoken since; less than LOOK_AGAIN_SECONDS
BUSY_SECONDS = 0.05  # another executor claims from a queue with a limit; it will not be long
PICKY_SHARE = 0.05  # of the time, for claims that leave out a kind of task: they read past a backlog of it
LANES = IN_THREADS, ON_LOOP = "threads", "loop"
AT_ONCE, NEVER = float("-inf"), float("inf")


class Appetite:
    """
    What the next claim asks for, and when. in_hand: gives what is claimed and has not ended.

    notice() and hurry() may be called from any thread, the rest from the pulse's. No moment is
    written on both sides, so that no notice is lost between a look and its answer.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ExecutorSettings,
        executor_id: UUID,
        crew: Crew,
        suspects: Suspects,
        in_hand: Callable[[], Iterable[Hold]] = lambda: (),
    ) -> None:
        self._engine, self._settings, self._executor_id = engine, settings, executor_id
        self._crew, self._suspects, self._in_hand = crew, suspects, in_hand
        self._noticed_at, self._hurried_at = time.monotonic(), AT_ONCE
        self._noticed: dict[str, float] = {}  # when
        self._looked_at = dict.fromkeys(LANES, AT_ONCE)  # when the last claim for a lane began
        self._is_hungry = dict.fromkeys(LANES, False)  # whether it found all it asked for
        self._emptied_at = dict.fromkeys(LANES, AT_ONCE)  # when the last claim for a lane alone began, if it took all
        self._lane_of_all: str | None = None  # in the last claim for both, if it found as many as it asked for
        self._threads_taken = 0  # by async bodies until then
        self.room_in_threads = self.room_on_loop = 0  # when the last demand was made
        self._next_poll_at = self._picky_again_at = AT_ONCE
        self._queues: list[str] = []
        self._queues_read_at = self._limits_read_at = AT_ONCE
        self.limited: frozenset[str] = frozenset()  # queues that have a max_running
        self.limits = frozenset(settings.queue_limits)  # those, and the ones that this process limits

    # --- from other threads

    def notice(self, queue: str) -> bool:
        """A queue has work; returns whether that is for us."""
        if self._settings.queues is not None and queue not in self._settings.queues:
            return False
        self._noticed[queue] = self._noticed_at = time.monotonic()
        return True

    def hurry(self) -> None:
        """Some queue may have work, one perhaps that was not in use."""
        self._noticed_at = self._hurried_at = time.monotonic()

    # --- from the pulse

    @property
    def is_satisfied(self) -> bool:
        """Whether the last claims left nothing behind, and nobody has spoken since."""
        return self._are_satisfied(LANES)

    def _are_satisfied(self, lanes: Collection[str]) -> bool:
        return not any(self._is_hungry[lane] or self._noticed_at >= self._looked_at[lane] for lane in lanes)

    def demand(self, most: int, *, is_alone: bool, is_convenient: bool) -> ClaimRequest:
        """
        Say what to claim now; a limit of 0 is nothing.

        most: tasks this process may still take. is_alone: nothing is in its hands. is_convenient:
        the database is asked something anyway.
        """
        asked = self._room(most, is_alone)
        if asked.limit == 0 or time.monotonic() < self._next_at(asked, is_convenient):
            return replace(asked, limit=0)
        wanted = self._within_limits(replace(asked, queues=self.serves()))
        if not wanted.queues and self.limits:
            self.claimed(asked, ClaimedBatch(), time.monotonic())  # as much as there is to get
            return replace(asked, limit=0)
        return wanted

    def claimed(self, demand: ClaimRequest, claims: ClaimedBatch, began_at: float) -> None:
        """A claim has been answered."""
        if demand.limit == 0:
            return
        if demand.suspects:
            self._suspects.claimed(bool(claims))
            return
        now, was_full = time.monotonic(), claims.is_cut or len(claims) >= demand.limit
        # A lane that had no room is as hungry as it was.
        for lane in lanes(demand):
            if demand.is_picky:
                self._emptied_at[lane] = AT_ONCE if was_full or claims.busy else began_at
            self._looked_at[lane], self._is_hungry[lane] = began_at, was_full and not self._is_emptied(lane, began_at)
        if claims and not demand.is_picky:
            coroutines, taken = self._crew.coroutines, self._crew.threads_taken
            # A hundred at once that use the ORM would ask for a hundred connections.
            is_light, self._threads_taken = self._crew.on_loop.has_moved and taken == self._threads_taken, taken
            found = {ON_LOOP if claimed.task_type in coroutines else IN_THREADS for claimed in claims}
            is_safe = was_full and (is_light or ON_LOOP not in found)
            self._lane_of_all = found.pop() if is_safe and len(found) == 1 else None
        self._next_poll_at = now + (BUSY_SECONDS if claims.busy else self._poll_seconds())
        if demand.is_picky and not was_full:
            self._picky_again_at = now + (now - began_at) / PICKY_SHARE

    def _is_emptied(self, lane: str, now: float) -> bool:
        """
        Whether a lane took all that was there for it, and nobody has spoken since.

        What is left behind by a claim for both is then for the other: to look for more, each time, where threads were
        busy and async tasks rare, was every second transaction.
        """
        emptied_at = self._emptied_at[lane]
        return self._noticed_at + LOOK_AGAIN_SECONDS <= emptied_at and now - emptied_at < self._interval

    def grow(self) -> bool:
        """Claim again as soon as something fits; returns whether that is news."""
        was_satisfied = not all(self._is_hungry.values())
        self._emptied_at = dict.fromkeys(LANES, AT_ONCE)
        self._is_hungry = dict.fromkeys(LANES, True)
        return was_satisfied

    def wait_seconds(self, most: int, *, is_alone: bool) -> float:
        """How long there is nothing to claim unless somebody speaks."""
        asked = self._room(most, is_alone)
        return NEVER if asked.limit == 0 else max(0.0, self._next_at(asked, False) - time.monotonic())

    def serves(self) -> Sequence[str]:
        """Name the queues to claim from."""
        if self._settings.queues is not None:
            return self._settings.queues
        now = time.monotonic()
        # A task that was just made READY may be alone in a queue that was not in use a moment ago.
        kept_seconds = QUEUES_GAP_SECONDS if self._hurried_at > self._queues_read_at else QUEUES_SECONDS
        if now - self._queues_read_at >= kept_seconds:
            # A notice speaks for what comes within its 5 ms too: a look in between may find nothing READY.
            for queue in [queue for queue, at in self._noticed.items() if now - at >= QUEUES_SECONDS]:
                del self._noticed[queue]
            self._queues, self._queues_read_at = self._engine.queues_in_use(), now
        return sorted({*self._queues, *self._noticed})

    def _within_limits(self, asked: ClaimRequest) -> ClaimRequest:
        """
        Ask for no more of a queue than this process may run, and for none where that is nothing.

        What waits in line counts as running: of a queue with a max_running only what starts at once is claimed, while
        others may have threads for the rest. But one may wait, or it would never have its turn behind a line of
        short tasks from other queues.
        """
        self._read_limits()
        if not self.limits:
            return asked
        holds = [hold for hold in self._in_hand() if hold.claimed.queue_name in self.limits]
        held = Counter(hold.claimed.queue_name for hold in holds)
        in_line = {hold.claimed.queue_name for hold in holds if hold.started_at is None}
        lane = self._crew.in_threads if asked.only is None else self._crew.on_loop
        at_once = min(asked.limit, max(0, lane.free))
        most: dict[str, int] = {}
        for queue in self.limits.intersection(asked.queues):
            most[queue] = self._settings.queue_limits.get(queue, asked.limit) - held[queue]
            if queue in self.limited:
                most[queue] = min(most[queue], max(at_once, 0 if queue in in_line else 1))
        queues = [queue for queue in asked.queues if most.get(queue, 1) > 0]
        return replace(asked, queues=queues, most=most, limited=[queue for queue in queues if queue in self.limited])

    def _read_limits(self) -> None:
        now = time.monotonic()
        if now - self._limits_read_at >= QUEUES_SECONDS:
            self.limited, self._limits_read_at = frozenset(self._engine.limited_queues()), now
            self.limits = self.limited.union(self._settings.queue_limits)

    def _room(self, most: int, is_alone: bool) -> ClaimRequest:
        """How many tasks fit, and of which kind: a full lane takes no more of its own."""
        nothing = ClaimRequest(executor_id=self._executor_id, queues=(), limit=0)
        if self._suspects.is_waiting:
            self.room_in_threads = self.room_on_loop = 1
            return replace(nothing, limit=min(1, most), suspects=True) if is_alone else nothing
        if most <= 0 or self._suspects.is_running:
            return nothing
        threads, loop, coroutines = self._crew.in_threads, self._crew.on_loop, sorted(self._crew.coroutines)
        in_threads, on_loop = (max(0, lane.free + lane.ahead()) for lane in (threads, loop))
        self.room_in_threads, self.room_on_loop = in_threads, on_loop
        if not coroutines:
            return replace(nothing, limit=min(most, in_threads))
        if in_threads and on_loop:  # who knows of which kind they will be: as the last ones, or some are handed back
            room = {IN_THREADS: in_threads, ON_LOOP: on_loop, None: min(in_threads, on_loop)}
            return replace(nothing, limit=min(most, room[self._lane_of_all]))
        if in_threads:
            return replace(nothing, limit=min(most, in_threads), but=coroutines)
        return replace(nothing, limit=min(most, on_loop), only=coroutines)

    def _next_at(self, asked: ClaimRequest, is_convenient: bool) -> float:
        """The moment of the next claim."""
        again_at = self._noticed_at + LOOK_AGAIN_SECONDS
        if is_convenient or asked.suspects or not self._are_satisfied(lanes(asked)):
            at = AT_ONCE
        elif any(self._looked_at[lane] < again_at for lane in lanes(asked)):
            at = min(again_at, self._next_poll_at)
        else:
            at = self._next_poll_at
        return max(at, self._picky_again_at) if asked.is_picky else at

    @property
    def _interval(self) -> float:
        return self._settings.poll_interval or self._engine.options.poll_interval

    def _poll_seconds(self) -> float:
        return self._interval * random.uniform(0.9, 1.1)


def lanes(demand: ClaimRequest) -> Collection[str]:
    """Name the lanes that a claim is for."""
    if demand.only is not None:
        return (ON_LOOP,)
    return (IN_THREADS,) if demand.but is not None else LANES
