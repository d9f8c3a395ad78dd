"""The loop: commit what has finished, wake what is due, claim what fits, then wait for an event."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import django.db

from jobqueue import registry
from jobqueue.actor import ActorTask
from jobqueue.api.notifications import notifier
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import ClaimLost
from jobqueue.executor.appetite import Appetite
from jobqueue.executor.crew import Crew
from jobqueue.executor.heartbeat import Heart
from jobqueue.executor.hold import Hold
from jobqueue.executor.ledger import Counts, Ledger, is_work_for_others
from jobqueue.executor.maintenance import AGAIN_SECONDS, Maintenance
from jobqueue.executor.outage import Line, Outage, Patience
from jobqueue.executor.room import Room
from jobqueue.executor.run import Ended, Worker, not_started
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.suspects import Suspects
from jobqueue.executor.telemetry.events import has_observers, task_fields
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.failpoints import reach
from jobqueue.printable import printable
from jobqueue.records import WAITING, ClaimedBatch, ClaimedTask, Command, CommitResult, Status, StoredMessage

logger = get_logger(__name__)

TAKE_BACK_SECONDS = 1.0  # a task that waited in line for so long goes back for others to take
DRAINED_SECONDS = 1.0  # --burst ends when nothing is due so soon
BURST_LOOK_SECONDS = 0.1  # and looks so often whether others are still at work
LAST_TRIES = 6  # to hand back what is left, or may be, when the database is away: some three seconds
TOLD_TOGETHER = 25  # announcements in one lot
UNTOLD_MOST = 1000  # with so many before the receivers of signals, nothing more is claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the loop has in common with the process's other threads. holds: what is in its hands, by task."""

    holds: dict[UUID, Hold]
    heart: Heart
    outage: Outage
    line: Line


class Pulse(threading.Thread):
    """
    Owns one connection, and everything that is claimed, from the claim to the commit.

    on_deadline: a body with a short timeout has started. on_end: called once, when the loop is over.
    on_command: called, in this thread, with a command for this executor. on_failure: called, in any thread, if a
    thread that runs bodies ends unexpectedly. It ends the process.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ExecutorSettings,
        worker: Worker,
        shared: Shared,
        on_deadline: Callable[[], None],
        on_failure: Callable[[BaseException], object],
        on_end: Callable[[], None] = lambda: None,
        on_command: Callable[[Command], None] = lambda command: None,
    ) -> None:
        super().__init__(name="pulse", daemon=True)
        self.engine, self.settings, self.worker, self._on_end = engine, settings, worker, on_end
        self.holds, self.heart, self.outage, self.line = shared.holds, shared.heart, shared.outage, shared.line
        self.executor_id = UUID(worker.executor_id)
        self.counts = Counts()
        self.failure: BaseException | None = None
        self.moved_at: float | None = None  # monotonic: when it last went round
        self.is_draining = False
        self._is_to_be_quiet = False
        self.is_quiet = False  # and no claim is under way
        self.is_abandoned = False
        self._patience = Patience()  # with the database
        self.left_behind: set[UUID] = set()
        self.crew = Crew(engine, settings, worker, self.finish, on_deadline, on_failure)
        self._suspects = Suspects(engine.options.heartbeat_timeout)
        self._appetite = Appetite(engine, settings, self.executor_id, self.crew, self._suspects, self._in_hand)
        self._room = Room(self._appetite)
        self._maintenance = Maintenance(engine, self.executor_id, self.heart, self._appetite.hurry, on_command)
        self._ledger = Ledger(engine, worker)
        self._finished: deque[Ended] = deque()
        self._to_tell: list[tuple[Ended, Status]] = []
        self._untold: set[int] = set()  # lots of them, before the receivers of signals
        self._news: set[str] = set()  # queues that our commits brought work to
        self._wakeup = threading.Event()
        self._impatient = threading.Event()  # ends a wait for the database that was begun before we were to stop
        self._has_handed_back = False

    # --- from other threads

    def notice(self, queue: str) -> None:
        """A queue has work."""
        if self._appetite.notice(queue):
            self._wakeup.set()

    def hurry(self) -> None:
        """Look for work now, and for mail."""
        self._appetite.hurry()
        self._maintenance.sweep_soon()
        self._wakeup.set()

    def be_quiet(self, is_quiet: bool) -> None:
        """Claim nothing until told otherwise; `is_quiet` tells when that is so."""
        self._is_to_be_quiet = is_quiet
        self.hurry()

    def drain(self) -> None:
        """Claim nothing more, finish what runs, hand the rest back, end."""
        self.is_draining = True
        self._impatient.set()
        self._wakeup.set()

    def abandon(self) -> None:
        """Hand back now whatever is left, and end."""
        self.is_abandoned = True
        self.drain()

    def leave_behind(self, hold: Hold) -> None:
        """Wait no longer for a body that does not stop; its claim ends with this process."""
        self.left_behind.add(hold.id)
        self._wakeup.set()

    def cut_connections(self) -> None:
        """Take the database away from bodies that are still running."""
        self.crew.cut_connections()

    def finish(self, over: Ended) -> None:
        self._finished.append(over)
        if not self._wakeup.is_set():
            self._wakeup.set()

    # --- the loop

    def run(self) -> None:
        patience = self._patience
        try:
            while not self._is_over():
                self.moved_at = time.monotonic()
                try:
                    with self.line:
                        self._turn()
                except django.db.Error as error:
                    self._lose_the_database(error)
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
            logger.exception("executor.loop_crashed")
        finally:
            self.line.drop()
            self._on_end()

    def _lose_the_database(self, error: Exception) -> None:
        """What was under way may have been committed all the same, an outcome or a claim."""
        self.outage.begin("pulse", error)
        self.line.drop(error)
        self._ledger.doubt()
        self._maintenance.expect_unknown_claims()

    def _turn(self) -> None:
        """Go round once. Raises django.db.Error, and nothing in hand is lost by it."""
        self.counts.turns += 1
        self._fall_quiet()
        self._collect()
        self._announce()
        self._take_back()
        outcomes = self._ledger.outcomes()
        demand = self._appetite.demand(self._most(), is_alone=not self.holds, is_convenient=bool(outcomes))
        claims = ClaimedBatch()
        if outcomes or demand.limit:
            began_at = time.monotonic()
            committed, claims = self.engine.commit_and_claim(outcomes, demand)
            if committed.done:
                reach("commit.after")
            if claims:
                reach("claim.after")
            self._begin(claims, self._read_mail(claims))
            self._appetite.claimed(demand, claims, began_at)
            self._settle(committed)
            self._announce()
        self._news |= self._room.to_tell(demand, claims)
        if self._news and self.engine.options.notify:
            news, self._news = self._news, set()
            notifier.send(self.engine, news)
        if self.is_abandoned:
            self.engine.release_strays(self.executor_id, self.left_behind)
            self.holds.clear()
            self._has_handed_back = True
        elif self._maintenance.due_in_seconds <= 0.0:
            self._maintenance.run_if_due(list(self.holds))
            if not self.is_draining and self._suspects.are_worth_a_look(is_alone=not self.holds):
                is_seen = self._maintenance.may_see_suspects and self.engine.has_suspects(self._appetite.serves())
                self._suspects.seen(is_seen)

    def _fall_quiet(self) -> None:
        """Say so between two claims, not while one is under way."""
        if self.is_quiet is not self._is_to_be_quiet:
            self.is_quiet = self._is_to_be_quiet
            if self.is_quiet:
                logger.info("executor.paused hint=No tasks are claimed until SIGCONT or resume.")
            self.heart.kick()  # people see it at once

    def _most(self) -> int:
        """How many tasks this process may still take."""
        if self.is_draining or self.is_quiet or self.heart.is_fenced() or self._are_untold_many():
            return 0
        if self.settings.max_tasks is None:
            return 1_000_000
        return max(0, self.settings.max_tasks - self.counts.claimed)

    def _idle_seconds(self) -> float:
        """How long nothing needs doing unless an event comes."""
        if self._finished or self.is_abandoned:
            return 0.0
        waits = [
            self._maintenance.due_in_seconds,
            self._appetite.wait_seconds(self._most(), is_alone=not self.holds),
        ]
        if len(self._ledger):
            waits.append(AGAIN_SECONDS)
        if self.settings.burst and not self.holds:
            waits.append(BURST_LOOK_SECONDS)
        return max(0.0, min(waits))

    # --- what was claimed

    def _in_hand(self) -> Iterator[Hold]:
        return (hold for hold in self.holds.values() if hold.id not in self._ledger)

    def _read_mail(self, claimed: Sequence[ClaimedTask]) -> Mapping[UUID, Sequence[StoredMessage]]:
        """After the claim: mail that comes later makes the task run again."""
        actors = [task.id for task in claimed if isinstance(registry.get(task.task_type), ActorTask)]
        return self.engine.read_messages(actors) if actors else {}

    def _begin(self, claimed: Sequence[ClaimedTask], mail: Mapping[UUID, Sequence[StoredMessage]]) -> None:
        self.counts.claimed += len(claimed)
        holds = [Hold(task, mail.get(task.id, ())) for task in claimed]
        if holds:
            reach("begin")
        for hold in holds:
            if (before := self.holds.get(hold.id)) is not None and is_of_another_past(before, hold):
                before.interrupt(ClaimLost)
        self.holds.update((hold.id, hold) for hold in holds)
        for hold in self.crew.begin(holds, self._appetite.room_in_threads, self._appetite.room_on_loop):
            self._enter(not_started(hold))
            self._wakeup.set()

    def _take_back(self) -> None:
        """Hand back what waits in line for too long, and all of it when we stop or make room for a suspect."""
        waited = 0.0 if self.is_draining or self._suspects.is_waiting else TAKE_BACK_SECONDS
        for hold in self.crew.take_back(waited):
            self._enter(not_started(hold))

    # --- what has ended

    def _collect(self) -> None:
        while self._finished:
            over = self._finished.popleft()
            if over.is_committed:
                self._conclude(over, over.outcome.status)
                self._wake(over.wake)
            else:
                self._enter(over)

    def _enter(self, over: Ended) -> None:
        now = self.holds.get(over.hold.id)
        lost = over if now is not None and is_of_another_past(over.hold, now) else self._ledger.add(over)
        if lost is not None:
            self._conclude(lost, None)

    def _settle(self, committed: CommitResult) -> None:
        for over, status in self._ledger.settle(committed):
            self._conclude(over, status)
        self._wake(committed.wake)

    def _wake(self, ids: frozenset[UUID]) -> None:
        if ids:
            self.engine.wake_or_leave(ids)

    def _conclude(self, over: Ended, status: Status | None) -> None:
        """Let go of a task. status: what it entered, None where the claim was lost."""
        hold = over.hold
        if self.holds.get(hold.id) is hold:  # the same task may have been claimed again meanwhile
            del self.holds[hold.id]
        self._suspects.ended()
        self._room.made(hold.claimed.queue_name)
        self.counts.add(over, status)
        if status in WAITING:
            self._maintenance.expect_wake(over.outcome)
        if is_work_for_others(over.outcome, status):
            self._news |= {child.queue_name for child in over.outcome.effects.spawn}
            self._appetite.hurry()
        if status is None:
            logger.warning(
                "task.commit_rejected task=%s id=%s",
                printable(hold.claimed.task_type),
                hold.id,
                extra=task_fields(hold.claimed, self.worker),
            )
        elif has_observers(over, status):
            self._to_tell.append((over, status))

    def _announce(self) -> None:
        """In small lots: whoever takes one on is busy with it until its last receiver has heard."""
        while self._to_tell:
            lot, self._to_tell = self._to_tell[:TOLD_TOGETHER], self._to_tell[TOLD_TOGETHER:]
            self._untold.add(id(lot))
            self.crew.announce(lot, then=partial(self._told, lot))

    def _told(self, lot: Sequence[tuple[Ended, Status]]) -> None:
        were_many = self._are_untold_many()
        self._untold.discard(id(lot))
        is_last = not self._untold and len(self.holds) <= len(self.left_behind)  # else the end of a body wakes us
        if is_last or (were_many and not self._are_untold_many()):
            self._wakeup.set()

    def _are_untold_many(self) -> bool:
        return len(self._untold) * TOLD_TOGETHER >= UNTOLD_MOST

    # --- the end

    def _is_over(self) -> bool:
        if self._has_handed_back:
            return True
        if self.holds.keys() - self.left_behind or len(self._ledger) or self._finished or self._untold:
            return False
        if self._maintenance.may_have_unknown_claims and self._patience.tries < LAST_TRIES:
            return False
        if self.is_draining or self.counts.claimed == self.settings.max_tasks:
            return True
        return self.settings.burst and self._appetite.is_satisfied and self._is_drained()

    def _is_drained(self) -> bool:
        try:
            with self.line:
                is_drained = self.engine.is_drained(self.settings.queues, DRAINED_SECONDS)
        except django.db.Error:
            return False  # the next turn meets the same outage, and waits it out
        if not is_drained:
            self._appetite.hurry()
        return is_drained

    def close(self, timeout_seconds: float) -> bool:
        """Stop threads and loop; returns whether all have ended."""
        return self.crew.close(timeout_seconds)


def is_of_another_past(before: Hold, hold: Hold) -> bool:
    """Whether a claim of ours has its number again, or a lower one: a backup was restored between the two."""
    return before is not hold and before.claimed.claim_number >= hold.claimed.claim_number
