"""The loop: commit what has finished, wake what is due, claim what fits, then wait for an event."""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import django.db

from jobqueue import registry
from jobqueue.engine.base import Engine
from jobqueue.exceptions import InvalidResult
from jobqueue.executor import announce
from jobqueue.executor.aio import Loop
from jobqueue.executor.heartbeat import Heart, Housekeeping
from jobqueue.executor.hold import Hold
from jobqueue.executor.lane import Lane
from jobqueue.executor.outage import Line, Outage, Patience
from jobqueue.executor.run import Ended, Loaded, Worker, failed
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.suspects import Suspects
from jobqueue.executor.threads import Threads, clean_connections, poll_in_thread
from jobqueue.outcome import Claimed, Committed, Demand, Status, released

logger = logging.getLogger("jobqueue.executor")

PREFETCH_SECONDS = 0.1  # claim beyond the free threads what will start within this time
PREFETCH_MOST = 500
TAKE_BACK_SECONDS = 1.0  # a prefetched task that has not started by then goes back for others to take
LOOK_AGAIN_SECONDS = 0.03  # after a notice: others may have been left out in its 20 ms
DRAINED_SECONDS = 1.0  # --burst ends when nothing is due so soon
LAST_TRIES = 3  # to hand back what is left, when the database is away
BURST_LOOK_SECONDS = 0.1  # and looks so often whether others are still at work


@dataclass(slots=True)
class Counts:
    """What this process did; read by its end's log line and by tests."""

    claimed: int = 0
    finished: int = 0
    lost: int = 0


class Pulse(threading.Thread):
    """
    Owns one connection, and everything that is claimed, from the claim to the commit.

    on_end: called once, in this thread, when the loop is over.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ExecutorSettings,
        worker: Worker,
        executor_id: UUID,
        holds: dict[UUID, Hold],
        heart: Heart,
        outage: Outage,
        line: Line,
        on_deadline: Callable[[], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="pulse", daemon=True)
        self.engine, self.settings, self.worker, self.executor_id = engine, settings, worker, executor_id
        self.holds, self.heart, self.outage, self.line, self.on_deadline = (
            holds,
            heart,
            outage,
            line,
            on_deadline,
        )
        self._on_end = on_end
        self.counts = Counts()
        self.failure: BaseException | None = None
        self.is_draining = False
        self.is_quiet = False
        self.is_abandoned = False
        self.left_behind: set[UUID] = set()
        self._threads = Threads(settings.threads, "jobqueue")
        self._loop = Loop("jobqueue")
        self._thread_lane = Lane(settings.threads, self._start_in_thread)
        self._loop_lane = Lane(settings.async_slots, self._start_on_loop)
        self._housekeeping = Housekeeping(engine, heart)
        self._suspects = Suspects(engine.options.heartbeat_timeout)
        self._finished: deque[Ended] = deque()
        self._unsettled: dict[UUID, Ended] = {}
        self._wakeup = threading.Event()
        self._impatient = threading.Event()  # ends a wait for the database that was begun before we were to stop
        self._queues: list[str] = list(settings.queues or ())
        self._queues_read_at = float("-inf")
        self._mean_run_seconds: float | None = None
        self._announcing: set[int] = set()
        self._in_doubt: set[UUID] = set()
        self._next_alarm_at = self._next_poll_at = time.monotonic()
        self._look_again_at: float | None = None
        self._is_hungry = True  # whether a claim is likely to find something
        self._was_away = False

    # --- from other threads

    def notice(self, queue: str) -> None:
        """A queue has work."""
        if self.settings.queues is None or queue in self.settings.queues:
            if queue not in self._queues:
                self._queues = [*self._queues, queue]
            self._is_hungry = True
            self._look_again_at = time.monotonic() + LOOK_AGAIN_SECONDS
            self._wakeup.set()

    def drain(self) -> None:
        """Claim nothing more, finish what runs, hand the rest back, end."""
        self.is_draining = True
        self._impatient.set()
        self._wakeup.set()

    def abandon(self) -> None:
        """Hand back now whatever is left, and end."""
        self.is_draining = self.is_abandoned = True
        self._impatient.set()
        self._wakeup.set()

    def hurry(self) -> None:
        """Look for work now."""
        self._is_hungry = True
        self._wakeup.set()

    def leave_behind(self, hold: Hold) -> None:
        """Wait no longer for a body that does not stop; its claim ends with this process."""
        self.left_behind.add(hold.id)
        self._wakeup.set()

    def close_connections(self) -> None:
        """Take the database away from bodies that are still running."""
        self._threads.close_connections()

    def finish(self, over: Ended) -> None:
        self._finished.append(over)
        self._wakeup.set()

    # --- the loop

    def run(self) -> None:
        patience = Patience()
        try:
            while not self._is_over():
                try:
                    with self.line:
                        self._turn()
                except django.db.Error as error:
                    self._was_away = True
                    self._in_doubt |= self._unsettled.keys()
                    self.outage.begin("pulse", error)
                    self.line.drop()
                    if self.is_abandoned and patience.tries >= LAST_TRIES:
                        break
                    self._impatient.wait(patience.next_seconds())
                    self._impatient.clear()
                    continue
                self.outage.end("pulse")
                patience.reset()
                self._wakeup.wait(self._idle_seconds())
                self._wakeup.clear()
        except BaseException as failure:  # the process must not live on without its loop
            self.failure = failure
            logger.exception("pulse.died")
        finally:
            self.line.drop()
            self._on_end()

    def _turn(self) -> None:
        """Go round once. Raises django.db.Error, and nothing in hand is lost by it."""
        if self._was_away:
            self._recover()
        self._collect()
        self._take_back()
        outcomes = [over.outcome for over in self._unsettled.values()]
        demand = self._demand()
        if outcomes or demand.limit > 0:
            committed, claimed = self.engine.pulse(outcomes, demand)
            if demand.limit > 0:
                self._is_hungry = len(claimed) >= demand.limit
            self._settle(committed)
            self._begin(claimed, alone=demand.suspects)
        if self.is_abandoned:
            self.engine.release_strays(self.executor_id, self.left_behind)
            self.holds.clear()
            return
        now = time.monotonic()
        if now >= self._next_alarm_at or self._housekeeping.due_in_seconds == 0:
            self._look_after_the_queue(now)

    def _look_after_the_queue(self, now: float) -> None:
        woken = self.engine.wake_due()
        self._next_alarm_at = now + (3600.0 if woken.next_seconds is None else max(0.0, woken.next_seconds))
        moved = self._housekeeping.run_if_due()
        self._is_hungry |= bool(woken.count) or moved
        if self._suspects.are_worth_a_look and not self.is_draining:
            self._suspects.seen(self.engine.has_suspects(self._serves()))

    def _recover(self) -> None:
        """A claim whose answer was lost left rows that we hold without knowing: they go back."""
        strays = self.engine.release_strays(self.executor_id, list(self.holds))
        if strays:
            logger.warning("task.released %d tasks whose claim was cut off", strays)
        self._was_away = False

    def _collect(self) -> None:
        while self._finished:
            over = self._finished.popleft()
            self._note_run_time(over)
            if over.is_committed:
                self._conclude(over, over.outcome.status)
            else:
                self._unsettled[over.hold.id] = over

    def _take_back(self) -> None:
        """Hand back what waits in line for too long, and all of it when we stop or run a suspect."""
        waited = 0.0 if self.is_draining or self._suspects.is_waiting else TAKE_BACK_SECONDS
        for lane in (self._thread_lane, self._loop_lane):
            for hold in lane.take_back(waited):
                self._unsettled[hold.id] = Ended(hold=hold, outcome=released(hold.claimed))

    # --- what to claim

    def _demand(self) -> Demand:
        limit, only, but = self._room()
        if self._suspects.is_waiting:
            is_alone = not self.holds
            self._suspects.tick(is_alone)
            if is_alone and limit > 0:
                return Demand(executor_id=self.executor_id, queues=self._serves(), limit=1, suspects=True)
            limit = 0
        if not (self._is_hungry or self._unsettled or self._is_poll_due()):
            limit = 0
        if limit > 0:
            self._next_poll_at = time.monotonic() + self._poll_seconds()
        return Demand(executor_id=self.executor_id, queues=self._serves(), limit=limit, only=only, but=but)

    def _room(self) -> tuple[int, Sequence[str] | None, Sequence[str] | None]:
        """How many tasks fit, and which types: a full lane takes no more of its own."""
        if self.is_draining or self.is_quiet or self.heart.is_fenced() or self._suspects.is_running:
            return 0, None, None
        in_threads, on_loop = self._thread_lane.free + self._prefetch(), self._loop_lane.free
        coroutines = coroutine_types()
        if self.settings.max_tasks is not None:
            left = self.settings.max_tasks - self.counts.claimed
            in_threads, on_loop = min(in_threads, left), min(on_loop, left)
        if in_threads > 0 and (on_loop > 0 or not coroutines):
            return in_threads, None, None
        if in_threads > 0:
            return in_threads, None, coroutines
        return (on_loop, coroutines, None) if on_loop > 0 and coroutines else (0, None, None)

    def _prefetch(self) -> int:
        """Claim ahead only as far as tasks will start within 100 ms, going by how long they took of late."""
        mean = self._mean_run_seconds
        if mean is None or mean * 2 > PREFETCH_SECONDS:
            return 0
        return min(PREFETCH_MOST, int(self.settings.threads * PREFETCH_SECONDS / max(mean, 1e-5)))

    def _note_run_time(self, over: Ended) -> None:
        if over.result is not None and not inspect.iscoroutinefunction(over.result.task.func):
            mean = self._mean_run_seconds
            self._mean_run_seconds = over.seconds if mean is None else mean + 0.2 * (over.seconds - mean)

    def _serves(self) -> Sequence[str]:
        if self.settings.queues is not None:
            return self.settings.queues
        now = time.monotonic()
        if now - self._queues_read_at >= 1.0:
            self._queues, self._queues_read_at = self.engine.queues_in_use(), now
        return self._queues

    def _poll_seconds(self) -> float:
        interval = self.settings.poll_interval or self.engine.options.poll_interval
        return interval * random.uniform(0.9, 1.1)

    def _is_poll_due(self) -> bool:
        now = time.monotonic()
        if self._look_again_at is not None and now >= self._look_again_at:
            self._look_again_at = None
            return True
        return now >= self._next_poll_at

    def _idle_seconds(self) -> float:
        """How long nothing needs doing unless an event comes."""
        if self._finished or self.is_abandoned or (self._is_hungry and self._room()[0] > 0):
            return 0.0
        now = time.monotonic()
        moments = [self._next_alarm_at, now + self._housekeeping.due_in_seconds]
        if self._unsettled:  # somebody holds the rows; it will not be long
            moments.append(now + 0.05)
        if self._room()[0] > 0:
            moments.append(self._next_poll_at)
            if self._look_again_at is not None:
                moments.append(self._look_again_at)
        if self.settings.burst and not self.holds:
            moments.append(now + BURST_LOOK_SECONDS)
        return max(0.0, min(moments) - now)

    # --- what was claimed

    def _begin(self, claimed: Sequence[Claimed], *, alone: bool) -> None:
        if alone:
            self._suspects.claimed(bool(claimed))
        coroutines = frozenset(coroutine_types())
        self.counts.claimed += len(claimed)
        for_threads, for_loop = [], []
        for task in claimed:
            hold = self.holds[task.id] = Hold(task)
            (for_loop if task.task_type in coroutines else for_threads).append(hold)
        self._thread_lane.add(for_threads)
        self._loop_lane.add(for_loop)
        if self.settings.max_tasks is not None and self.counts.claimed >= self.settings.max_tasks:
            self.is_draining = True

    def _start_in_thread(self, hold: Hold) -> None:
        self._threads.submit(partial(self._poll_in_thread, hold))

    def _poll_in_thread(self, hold: Hold) -> None:
        try:
            self.finish(poll_in_thread(hold, self.engine, self.worker, self._on_started))
        except BaseException as error:  # not the body's: ours. The task must not stay RUNNING for it.
            logger.exception("worker.error task id=%s type=%s", hold.id, hold.claimed.task_type)
            self.finish(Ended(hold=hold, outcome=failed(hold.claimed, error, self.worker), error=error))
        finally:
            self._thread_lane.left()

    def _start_on_loop(self, hold: Hold) -> None:
        self._loop.submit(hold, self.worker, self._on_started, self._finish_on_loop)

    def _finish_on_loop(self, over: Ended) -> None:
        self.finish(over)
        self._loop_lane.left()

    def _on_started(self, hold: Hold, loaded: Loaded) -> None:
        if hold.deadline_at is not None:
            self.on_deadline()
        announce.started(hold, loaded, self.worker)

    # --- what was committed

    def _settle(self, committed: Committed) -> None:
        for pk, status in committed.done.items():
            self._conclude(self._unsettled.pop(pk), status)
        for pk in committed.lost:
            over = self._unsettled.pop(pk)
            if pk in self._in_doubt and self._was_committed(over):
                self._conclude(over, over.outcome.status)
                continue
            self.holds.pop(pk, None)
            self._suspects.ended()
            self.counts.lost += 1
            logger.warning(
                "task.outcome_dropped task id=%s type=%s: another claim holds it, or it has ended",
                pk,
                over.hold.claimed.task_type,
                extra=announce.keys(over.hold, self.worker),
            )
        for pk, error in committed.refused.items():
            over = self._unsettled[pk]
            refusal = InvalidResult(f"The database refused the outcome: {error}")
            self._unsettled[pk] = replace(
                over, outcome=failed(over.hold.claimed, refusal, self.worker), error=refusal
            )
        self._in_doubt &= self._unsettled.keys()
        if committed.wake:
            self._wake(committed.wake)

    def _was_committed(self, over: Ended) -> bool:
        """After a COMMIT whose reply was lost: whether the row shows that it took place."""
        row = self.engine.tasks.filter(pk=over.hold.id, claim_number=over.hold.claimed.claim_number)
        return row.values_list("status", flat=True).first() == over.outcome.status

    def _wake(self, ids: frozenset[UUID]) -> None:
        try:
            self.engine.wake(ids)
        except django.db.OperationalError as error:  # somebody holds the rows; the sweep finds them
            logger.info("wake.left_to_sweep %s", error)

    def _conclude(self, over: Ended, status: Status) -> None:
        self.holds.pop(over.hold.id, None)
        self._suspects.ended()
        if status is not Status.READY:
            self.counts.finished += 1
        if over.result is None and over.error is None and status is Status.READY:
            return  # prefetched and handed back, never started
        self._announcing.add(id(over))
        self._threads.submit(partial(self._announce, over, status))

    def _announce(self, over: Ended, status: Status) -> None:
        try:
            announce.ended(over, status, self.worker)
        finally:
            clean_connections()
            self._announcing.discard(id(over))
            self._wakeup.set()

    # --- the end

    def _is_over(self) -> bool:
        if self.is_abandoned and not self.holds:
            return True
        if self.holds.keys() - self.left_behind or self._unsettled or self._finished or self._announcing:
            return False
        if self.is_draining:
            return True
        return self.settings.burst and not self._is_hungry and self._is_drained()

    def _is_drained(self) -> bool:
        try:
            with self.line:
                return self.engine.is_drained(self.settings.queues, DRAINED_SECONDS)
        except django.db.Error:
            return False  # the next turn meets the same outage, and waits it out

    def close(self, timeout_seconds: float) -> bool:
        """Stop threads and loop; returns whether all have ended."""
        ended = self._threads.close(timeout_seconds)
        return self._loop.close(timeout_seconds) and ended


def coroutine_types() -> list[str]:
    """Name the registered tasks that run on the event loop."""
    return [name for name, task in registry.all().items() if inspect.iscoroutinefunction(task.func)]
