"""Maintain the whole queue between two claims: wake, sweep, rescue, prune, aggregate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from jobqueue.api import limits
from jobqueue.api.notifications import CANCEL_NOTIFICATION
from jobqueue.api.schedule_deployments import DeclaredSchedules
from jobqueue.engine import AGGREGATE_BATCH, FIRE_BATCH, RELEASE_BATCH, REQUESTS_READ, Engine
from jobqueue.executor.budgets import Budgets
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import Admitted, FiredSchedules, NewTask, Outcome, PendingWork, Rescued
from jobqueue.values.states import Command, Status
from jobqueue.values.text import printable

logger = get_logger(__name__)

CHECK_SECONDS = 0.5  # between two queries for pending work: wake-ups that others set, commands, lost executors
AGAIN_SECONDS = 0.05  # another session has locked a row that we want to write
SWEEP_SECONDS = 1.0
SWEEP_GAP_SECONDS = 0.02  # from a notification of a message to its sweep, which then serves many
DECLARE_SECONDS = 30.0  # between two checks whether other code has written its schedules
FIRE_SECONDS = 0.5  # between two checks of ticks that wait for a running task
PRUNE_SECONDS = 30.0
FORWARD_BATCH = 10_000  # requests
PRUNE_BATCH = 1000  # of each status, and of ticks
MESSAGES_PRUNED = 10_000  # of a task that has too many to be deleted with it
PRUNE_GAP_SECONDS = 0.1  # after a full batch: one executor deletes what all executors have ended
AGGREGATE_SECONDS = 5.0
RESCUE_BATCH = 100
SWEEP_BATCH = WAKE_BATCH = 1000
NOTHING = PendingWork(
    None,
    None,
    has_waiting_tick=False,
    has_running=False,
    has_messages=False,
    has_command=False,
    has_isolated=False,
    has_awaiting_code=False,
)
NEVER = float("inf")


class Maintenance:
    """
    Decides what is due, and does it in the loop's thread. sweep_soon() and admit_soon() may be called from any thread.

    Each call of the engine goes through `budgets`: one that fails is made later and smaller, and stops no other. So the
    moment of the next call is set before the call.

    on_ready: called when tasks may have become READY. on_admitted: called with the number of admitted tasks by queue,
    after on_ready. on_command: called with a command for this executor. on_fired: called with the tasks of schedules
    that were enqueued. look_for_code: called with whether AWAITING_CODE tasks exist; returns how many of them have
    ended their wait, or can.

    It has more than 15 attributes because each regular call has a time of its own.
    """

    def __init__(
        self,
        engine: Engine,
        executor_id: UUID,
        heartbeat: HeartbeatThread,
        budgets: Budgets,
        on_ready: Callable[[], None],
        on_admitted: Callable[[Mapping[str, int]], None],
        on_command: Callable[[Command], None],
        on_fired: Callable[[Sequence[tuple[NewTask, datetime]]], None],
        look_for_code: Callable[[bool], int],
    ) -> None:
        self._look_for_code = look_for_code
        self._engine, self._executor_id, self._heartbeat = engine, executor_id, heartbeat
        self._budgets, self._call = budgets, budgets.call
        self._on_ready, self._on_admitted = on_ready, on_admitted
        self._on_command, self._on_fired = on_command, on_fired
        now = time.monotonic()
        self._check_at, self._prune_at, self._aggregate_at = now, now + PRUNE_SECONDS, now + AGGREGATE_SECONDS
        self._sweep_at, self._swept_at, self._fired_at = NEVER, -NEVER, -NEVER
        self._admit_at, self._admit_again_at = NEVER, now
        self._should_admit = False
        self._fire_gap = AGAIN_SECONDS
        self._declared, self._declare_at = DeclaredSchedules.of(engine.alias), now
        self._unknown_until = now  # while the server may still commit a claim that got no answer
        self.may_have_isolated = True
        self._frozen_executor: UUID | None = None  # an executor that one of its tasks has frozen
        self._set_back_seconds = 0.0  # by which requests are still to be due earlier
        self._brought_forward = 0  # the id of the last request that is

    def isolate_tasks_of(self, executor_id: UUID) -> None:
        """Let the tasks of a frozen executor, whose place this one takes, run alone after their rescue."""
        self._frozen_executor = executor_id

    @property
    def due_in_seconds(self) -> float:
        due_at = min(self._check_at, self._sweep_at, self._prune_at, self._admit_at)
        return 0.0 if self._should_admit else max(0.0, due_at - time.monotonic())

    def admit_soon(self) -> None:
        """Look at the limits now, beside the next claim or in the next maintenance. Any thread may call this."""
        self._should_admit = True

    def pop_admission_wish(self) -> bool:
        """Return whether to look at the limits now. The caller does so, and calls admitted()."""
        should_admit, self._should_admit = self._should_admit, False
        return should_admit

    def admitted(self, admitted: Admitted | None) -> None:
        """Note what was admitted beside a claim; None if there was nothing to claim."""
        if admitted is None:
            self.admit_soon()
        elif admitted.has_more:
            self._check_at = time.monotonic()

    def look_for_code_soon(self) -> None:
        """Look at once for more tasks that wait for code and that this executor has code for."""
        self._check_at = time.monotonic()

    def sweep_soon(self) -> None:
        """Sweep soon, for a message that has come. Any thread may call this."""
        self._sweep_at = min(self._sweep_at, time.monotonic() + SWEEP_GAP_SECONDS)

    def expect_wake(self, outcome: Outcome) -> None:
        """Note when a task of this executor wants to run again. Only the database can tell how far off wake_at is."""
        now, unknown = time.monotonic(), None if outcome.wake_at is None else 0.0
        waits = (outcome.wake_after_seconds, outcome.recheck_seconds, unknown)
        self._check_at = min([self._check_at, *(now + wait for wait in waits if wait is not None)])

    def expect_unknown_claims(self) -> None:
        """Note that the connection was lost: the server may still commit a claim, and its answer is lost."""
        self._check_at, self._unknown_until = time.monotonic(), NEVER

    @property
    def may_have_unknown_claims(self) -> bool:
        """Whether the connection was lost, and the server was not asked since which tasks this executor has."""
        return self._unknown_until == NEVER

    def run_if_due(self, own_claims: Collection[UUID]) -> None:
        """Do what is due. own_claims: the tasks that this process has claimed. Raises django.db.Error."""
        now = time.monotonic()
        if (frozen := self._frozen_executor) is not None:

            def isolate(_: int) -> None:
                self._engine.executors.isolate_tasks_of(frozen)
                self._frozen_executor = None

            self._call("isolate_tasks_of", isolate, None)
        if (now < self._unknown_until or self._heartbeat.has_unknown_claims) and self._release_unknown(own_claims):
            # The time starts with the first answer, because the database may have been unreachable for long.
            self._unknown_until = min(self._unknown_until, now + self._engine.options.heartbeat_timeout)
        if now >= self._declare_at:
            self._declare_at = now + DECLARE_SECONDS
            if self._call("declare_schedules", lambda _: self._declared.synchronize(self._engine), False):
                self._check_at = now
            if self._call("reset_limits", lambda _: limits.reset_non_adjustable_limits(self._engine), 0):
                self.admit_soon()
        if seconds := self._heartbeat.take_set_back_seconds():
            self._set_back_seconds, self._brought_forward = self._set_back_seconds + seconds, 0
        if self._set_back_seconds:
            self._call("bring_forward", self._bring_forward, None, FORWARD_BATCH)
            self.admit_soon()
        if self.pop_admission_wish() or now >= self._admit_at:
            self._admit(now)
        changed = self._check_pending(now) if now >= self._check_at else 0
        if now >= self._sweep_at:
            self._sweep_at, self._swept_at = NEVER, now
            changed += self._call("sweep", self._engine.messages.sweep, 0, SWEEP_BATCH)
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_SECONDS
            is_full = self._fills("prune", self._engine.tasks.prune, PRUNE_BATCH)
            if self._budgets.is_smallest("prune"):  # a single task has too many messages
                is_full |= self._fills("prune_messages", self._engine.tasks.prune_messages, MESSAGES_PRUNED)
            if self._fills("prune_ticks", self._engine.ticks.prune, PRUNE_BATCH) or is_full:
                self._prune_at = now + PRUNE_GAP_SECONDS
        if now >= self._aggregate_at:
            self._aggregate_at = now + AGGREGATE_SECONDS
            if self._fills("aggregate_counters", self._engine.counters.aggregate_counters, AGGREGATE_BATCH):
                self._aggregate_at = now
        if changed:
            self._on_ready()
            self.may_have_isolated = True

    def _fills(self, verb: str, function: Callable[[int], int], size: int) -> bool:
        """Call a verb that counts what it did. Return whether it did as much as it may at once: there may be more."""

        def is_full(allowed: int) -> bool:
            return function(allowed) >= allowed

        answer: bool | None = self._call(verb, is_full, None, size)
        return self._budgets.has_failed(verb) if answer is None else answer

    def _check_pending(self, now: float) -> int:
        """Ask the database what is due. Wake and rescue tasks, and return how many."""
        self._check_at = now + CHECK_SECONDS
        due = self._call("check", lambda _: self._engine.executors.pending_maintenance(self._executor_id), NOTHING)
        self.may_have_isolated = due.has_isolated
        if due.has_messages:
            self._sweep_at = min(self._sweep_at, self._swept_at + SWEEP_SECONDS)
        if due.has_command:
            command = self._call("take_command", lambda _: self._engine.executors.take_command(self._executor_id), None)
            if command is not None:
                self._on_command(command)
        if due.next_admission_seconds is not None:
            is_due = due.next_admission_seconds <= 0.0
            self._admit_at = min(self._admit_at, self._admit_again_at if is_due else now + due.next_admission_seconds)
        changed = self._fire(now, due.next_tick_seconds, has_waiting=due.has_waiting_tick)
        changed += self._wake(now, due.next_wake_seconds)
        changed += self._call("look_for_code", lambda _: self._look_for_code(due.has_awaiting_code), 0)
        return changed + (self._rescue(now) if due.has_running else 0)

    def _admit(self, now: float) -> None:
        """Let BLOCKED tasks run that their limits allow. Check afterwards when the next limit may."""
        self._admit_at, self._check_at = NEVER, now
        admitted: Admitted | None = self._call("admit", self._engine.admissions.admit, None, REQUESTS_READ)
        if admitted is None:
            admitted = Admitted()
            if self._budgets.is_smallest("admit"):  # one key takes too long: it must not stop the others
                self._call("postpone_admission", lambda _: self._engine.admissions.postpone(), None)
        # Without any key, other sessions look at the due ones.
        self._admit_again_at = now + (0.0 if admitted.keys_seen else AGAIN_SECONDS)
        if admitted.queues:
            self._on_ready()
            self._on_admitted(admitted.queues)

    def _fire(self, now: float, due_in_seconds: float | None, *, has_waiting: bool) -> int:
        """Enqueue the tasks of due ticks. Return how many."""
        is_due = due_in_seconds is not None and due_in_seconds <= 0.0
        if not is_due and not (has_waiting and now >= self._fired_at + FIRE_SECONDS):
            self._check_at = min(self._check_at, now + (NEVER if due_in_seconds is None else due_in_seconds))
            return 0
        self._fired_at = now
        fired = self._call("fire", self._engine.ticks.fire, FiredSchedules(), FIRE_BATCH)
        # Check for more. If none was due after all, another session has locked the schedules, perhaps for minutes.
        self._fire_gap = AGAIN_SECONDS if fired.count else min(2 * self._fire_gap, CHECK_SECONDS)
        self._check_at = min(self._check_at, now + (0.0 if fired.count else self._fire_gap))
        if fired.count:
            logger.info(
                "schedule.fired schedules=%d enqueued=%d skipped=%d", fired.count, fired.enqueued, fired.skipped
            )
            queues = fired.queues | ({CANCEL_NOTIFICATION} if fired.has_cancelled else set())
            if queues and self._engine.options.notify:
                self._call("notify", lambda _: self._engine.queues.notify(sorted(queues)), None)
            self._on_fired(fired.tasks)
        return fired.enqueued

    def _wake(self, now: float, due_in_seconds: float | None) -> int:
        if due_in_seconds is None or due_in_seconds > 0.0:
            self._check_at = min(self._check_at, now + (NEVER if due_in_seconds is None else due_in_seconds))
            return 0
        count = self._call("wake_due", self._engine.inbox.wake_due, 0, WAKE_BATCH)
        if count:
            failpoint("due.after")
        # Check for the next task. Without a count, another session has locked the rows.
        self._check_at = now + (0.0 if count else AGAIN_SECONDS)
        return count

    def _bring_forward(self, limit: int) -> None:
        """Let some requests of rates be due earlier, because the server's clock was set back."""
        last = self._engine.admissions.bring_forward(self._set_back_seconds, self._brought_forward, limit)
        if last is None:
            self._set_back_seconds = 0.0
        else:
            self._brought_forward, self._check_at = last, time.monotonic()

    def _rescue(self, now: float) -> int:
        if not self._heartbeat.may_rescue:
            return 0
        rescue, may_go_on = self._engine.executors.rescue, self._heartbeat.may_still_rescue
        rescued: list[Rescued] = self._call("rescue", lambda limit: rescue(limit, may_go_on), [], RESCUE_BATCH)
        if len(rescued) >= RESCUE_BATCH:  # there are more, and rescued tasks are promised a start within two seconds
            self._check_at = now
        for task in rescued:
            logger.log(
                logging.ERROR if task.status is Status.FAILED else logging.WARNING,
                "task.rescued task=%s id=%s status=%s losses=%d executor=%s silent_s=%.1f",
                printable(task.task_type),
                task.id,
                task.status,
                task.executor_losses,
                task.executor_id,
                task.silent_seconds,
                extra={"task_id": str(task.id), "task": printable(task.task_type), "executor": str(task.executor_id)},
            )
        return len(rescued)

    def _release_unknown(self, own_claims: Collection[UUID]) -> bool:
        """
        Release tasks that the database has as ours and this process does not: the answer to a claim was lost.

        Return whether all were.
        """

        def release(limit: int) -> tuple[int, bool]:
            count = self._engine.commits.release_unknown_claims(self._executor_id, own_claims, limit)
            return count, count < limit

        count, is_done = self._call("release_unknown_claims", release, (0, False), RELEASE_BATCH)
        if count:
            logger.warning("claims.released count=%d", count)
            self._on_ready()
        return is_done
