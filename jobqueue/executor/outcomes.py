"""Outcomes of tasks: from a completed attempt to the commit that the database has confirmed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import django.db

from jobqueue.api.notifications import END_NOTIFICATION
from jobqueue.engine import SHORT_WAIT
from jobqueue.executor.budgets import Budgets
from jobqueue.executor.callbacks import ResultCallbacks
from jobqueue.executor.database.connection import GuardedConnection
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.maintenance import Maintenance
from jobqueue.executor.running.attempt import CompletedAttempt, ExecutorIdentity, with_start
from jobqueue.executor.running.events import task_fields
from jobqueue.executor.running_tasks import Confirmed, RunningTasks
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import NO_EFFECTS, CommitResult, Outcome
from jobqueue.values.states import FINAL, WAITING, Status
from jobqueue.values.text import printable

logger = get_logger(__name__)

COUNT_START_SECONDS = 0.05  # a body with a rate that runs for longer is counted before its end
LOST_COMMITS = 3  # in a row by which a connection was lost: the commit may be to blame, as one of a gigabyte
FAMILY_BATCH = 500  # children of a task whose end takes too long, in one transaction
MAX_REPORTS = 1000  # in one write
MAX_AWAITED = 1000  # tasks whose ends other processes wait for; of more, the first ones are found by polling


@dataclass(slots=True)
class EndedCounts:
    """Numbers of tasks that this process has let go of, by their ends."""

    finished: int = 0  # tasks that have ended, by a commit
    lost: int = 0  # claims
    undelivered: int = 0  # messages that no task will read


class Outcomes:
    """
    Commits outcomes until each is confirmed. Belongs to the loop's thread.

    completed: what the pools have completed; their threads append to it. expect: called with the queue of an outcome
    whose commit may let BLOCKED tasks run; admit_soon: the same after its commit. on_ended: called with an attempt that
    this process lets go of, and the state that its task entered; None if its claim was lost. on_succeeded: called
    instead with those that have ended SUCCESSFUL and changed nothing else.

    It has more than 15 attributes because it knows each part that hears of an end.
    """

    def __init__(
        self,
        identity: ExecutorIdentity,
        running_tasks: RunningTasks,
        connection: GuardedConnection,
        heartbeat: HeartbeatThread,
        maintenance: Maintenance,
        budgets: Budgets,
        callbacks: ResultCallbacks,
        *,
        completed: deque[CompletedAttempt],
        expect: Callable[[str], None],
        admit_soon: Callable[[str], None],
        on_ended: Callable[[CompletedAttempt, Status | None], None],
        on_succeeded: Callable[[Sequence[CompletedAttempt]], None],
    ) -> None:
        self._identity, self._engine = identity, identity.engine
        self._running_tasks, self._connection, self._heartbeat = running_tasks, connection, heartbeat
        self._maintenance, self._budgets, self._callbacks = maintenance, budgets, callbacks
        self.counts = EndedCounts()
        self._completed = completed
        self._expect, self._admit_soon = expect, admit_soon
        self._on_ended, self._on_succeeded = on_ended, on_succeeded
        self._lost_commits = 0  # in a row: the connection was lost
        self.awaited: dict[str, None] = {}  # ids of tasks whose ends other processes wait for, in order

    # --- what has completed

    @property
    def has_completed(self) -> bool:
        """Whether a pool has completed a task since the last turn."""
        return bool(self._completed)

    def collect(self) -> None:
        """Take what the pools have completed."""
        attempts = []
        while self._completed:
            completed = self._completed.popleft()
            if completed.is_committed:
                if completed.outcome.may_unblock_others:
                    self._admit_soon(completed.running.claimed.queue_name)
                self._let_go([(completed, completed.outcome.status)])
                self._wake_receivers(completed.wake)
            else:
                attempts.append(completed)
        self.complete(attempts)

    def complete(self, attempts: Sequence[CompletedAttempt]) -> None:
        """Keep outcomes for the next commit."""
        kept = []
        for completed in attempts:
            if completed.outcome.may_unblock_others:
                self._expect(completed.running.claimed.queue_name)
                completed = with_start(completed)
            kept.append(completed)
        self._let_go([(lost, None) for lost in self._running_tasks.complete(kept)])

    def count_starts(self) -> None:
        """Let rates count the bodies that run for long."""
        if self._running_tasks.has_uncounted:
            count = self._running_tasks.count_starts
            self._budgets.call("count_starts", lambda _: count(after_seconds=COUNT_START_SECONDS), None)

    # --- commits

    def commit(self, outcomes: Sequence[Outcome], lock_wait: str | None = None) -> CommitResult:
        """Commit and nothing else. Raises django.db.Error, and keeps the outcomes then."""
        if not outcomes:
            return CommitResult()
        self._connection.restart()
        began_at = time.monotonic()
        try:
            result = self._engine.commits.commit(outcomes, holder=self._identity.executor_id, lock_wait=lock_wait)
        except (django.db.Error, MemoryError) as error:
            self.commit_failed(outcomes, error, began_at, is_alone=True)
            raise as_database_error(error) from error.__cause__
        self.committed(result)
        if any(outcome.may_unblock_others for outcome in outcomes):
            self._maintenance.admit_soon()
        return result

    def committed(self, result: CommitResult) -> None:
        """Note that a commit has got its answer."""
        self._lost_commits = 0
        if result.done:
            failpoint("commit.after")

    def commit_failed(self, outcomes: Sequence[Outcome], error: Exception, began_at: float, *, is_alone: bool) -> None:
        """
        Keep outcomes whose commit failed. One that is too slow by itself is given up after some tries.

        A try counts only if a heartbeat was written since its beginning. Otherwise the database may be slow for all.
        """
        if not outcomes:
            return
        is_writable, has_timed_out = self._heartbeat.last_good_at > began_at, self.has_timed_out(error)
        self._lost_commits = 0 if has_timed_out else self._lost_commits + 1
        if 0 < self._lost_commits < LOST_COMMITS:
            return  # before it claims more, the next turn finds out whether this commit has succeeded
        counts = is_alone and is_writable and has_timed_out
        self._running_tasks.mark_in_doubt()
        self._running_tasks.commit_failed(
            outcomes, format_first_line(error), time.monotonic() - began_at, counts=counts
        )

    def has_timed_out(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or self._connection.has_timed_out(error)

    def commit_again(self) -> None:
        """Commit outcomes of which a commit has failed: those that waited for locks, and some of the slow ones."""
        if locked := self._running_tasks.locked():
            self.confirm(self.commit(locked, SHORT_WAIT))
        if not (slow := self._running_tasks.slow()):
            return
        is_alone = self._running_tasks.batches.is_alone(slow)
        if is_alone and slow[0].effects.cancel_children and not self._end_family(slow[0]):
            return
        self.confirm(self.commit(slow))

    def _end_family(self, outcome: Outcome) -> bool:
        """Cancel some children of an outcome whose commit took too long. Return whether it can be committed now."""

        def cancel(limit: int) -> bool:
            return self._engine.commits.cancel_children(outcome, self._identity.executor_id, limit) < limit

        is_done = self._budgets.call("cancel_children", cancel, False, FAMILY_BATCH)
        return is_done or self._budgets.is_smallest("cancel_children")  # otherwise the outcome could never be given up

    def confirm(self, result: CommitResult) -> None:
        """Let go of the tasks of confirmed outcomes. Raises django.db.Error, and loses none then."""
        self._let_go(self._running_tasks.confirm(result))
        self._wake_receivers(result.wake)

    def _wake_receivers(self, ids: frozenset[UUID]) -> None:
        if ids:
            self._connection.restart()
            self._engine.messages.wake_or_defer(ids)
            self._connection.restart()  # it logs a failure and leaves the rest to the sweep

    def _let_go(self, ended: Sequence[Confirmed]) -> None:
        """Remove tasks that ended. Those that were SUCCESSFUL and changed nothing else are handled together."""
        if not ended:
            return
        self._running_tasks.remove([completed.running for completed, _ in ended])
        successes = []
        for completed, status in ended:
            outcome = completed.outcome
            is_plain = outcome.effects is NO_EFFECTS and outcome.parent_id is None and completed.undelivered == 0
            if status is Status.SUCCESSFUL and is_plain:
                successes.append(completed)
            else:
                self._end(completed, status)
        self.counts.finished += len(successes)
        self._on_succeeded(successes)
        self._callbacks.add_successes(successes)
        if self.awaited:
            self._notify_waiting(ended)

    def await_end(self, pk: str) -> None:
        """Note that a process waits for the end of a task. Any thread may call it."""
        self.awaited[pk] = None
        if len(self.awaited) > MAX_AWAITED:
            self.awaited.pop(next(iter(self.awaited)), None)

    def _notify_waiting(self, ended: Sequence[Confirmed]) -> None:
        """Notify the processes that wait for one of these tasks. They find out by polling if this is lost."""
        ids = [str(completed.running.id) for completed, status in ended if status in FINAL]
        names = [f"{END_NOTIFICATION}{pk}" for pk in ids if pk in self.awaited]
        for pk in ids:
            self.awaited.pop(pk, None)
        if names:
            with suppress(django.db.Error):
                self._budgets.call("notify", lambda _: self._engine.queues.notify(names), None)

    def _end(self, completed: CompletedAttempt, status: Status | None) -> None:
        """Act on the end of an attempt. status: the state its task entered, None if its claim was lost."""
        task = completed.running
        self._on_ended(completed, status)
        self.counts.undelivered += completed.undelivered
        if status is None:
            self.counts.lost += 1
            logger.warning(
                "task.commit_rejected task=%s id=%s",
                printable(task.claimed.task_type),
                task.id,
                extra=task_fields(task),
            )
            return
        if status in FINAL:
            self.counts.finished += 1
        if status in WAITING:
            self._maintenance.expect_wake(completed.outcome)
        self._callbacks.add(completed, status)

    def write_reports(self, result: CommitResult, *, is_last: bool) -> None:
        """Write what bodies report while they run."""

        def write(limit: int) -> None:
            self._identity.reports.write(self._engine, ended=result.done, is_last=is_last, limit=limit)

        if self._identity.reports:
            self._budgets.call("write_reports", write, None, MAX_REPORTS)

    # --- for probes

    def stuck(self) -> tuple[float, str] | None:
        """Return for how many seconds the slow outcomes have not been committed, and why; None if there are none."""
        if not (slow := self._running_tasks.batches.stuck()):
            return None
        count, seconds, error = slow
        return seconds, f"Outcomes that cannot be committed: {count}. Last error: {error}"

    def waiting(self, limit_seconds: float) -> Iterator[str]:
        """Say which outcomes have waited longer than the limit for locks of other sessions."""
        waiting = self._running_tasks.batches.waiting()
        if waiting is not None and waiting[1] > limit_seconds:
            count, seconds = waiting
            yield f"Outcomes that wait for locks of other sessions: {count}, for {seconds:.0f} s. See pg_locks."


def as_database_error(error: django.db.Error | MemoryError) -> django.db.Error:
    """Return the error as one of the database: the outcomes of a commit did not fit into memory."""
    return django.db.OperationalError("out of memory") if isinstance(error, MemoryError) else error
