"""The executor's loop: commit what has completed, claim what fits, start it, then wait for an event."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import django.db

from jobqueue.api import ends
from jobqueue.executor.budgets import Budgets
from jobqueue.executor.callbacks import ResultCallbacks
from jobqueue.executor.claim_policy import ClaimPolicy
from jobqueue.executor.claims import Claimer
from jobqueue.executor.database.connection import DatabaseState, GuardedConnection, ReconnectBackoff
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.maintenance import AGAIN_SECONDS, Maintenance
from jobqueue.executor.outcomes import COUNT_START_SECONDS, Outcomes, as_database_error
from jobqueue.executor.pools.base import Pool, PoolContext, ThreadGroup
from jobqueue.executor.pools.event_loop import AsyncPool
from jobqueue.executor.pools.threads import ThreadPool
from jobqueue.executor.running.attempt import CompletedAttempt, ExecutorIdentity, RunningTask
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.stop import LAST_TRIES, Stop
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.records import ClaimedBatch, ClaimRequest, CommitResult, Outcome
from jobqueue.values.states import Command, PoolName

logger = get_logger(__name__)

BURST_CHECK_SECONDS = 0.1  # how often --burst checks whether other executors are still at work
UNLIMITED = 1_000_000
APART_SECONDS = 10.0  # after a failed transaction that was to commit and claim, both are done apart; doubled each time
MAX_APART_SECONDS = 1000.0


class ExecutorLoop(threading.Thread):
    """
    The thread of the loop, and its one connection: `claims` fill the pools, `outcomes` empty them, `stop` ends it.

    It has more than 20 methods and more than 15 attributes because it makes the parts of the process that share its
    thread, and because other threads talk to these only through it.
    on_deadline: a body with a short timeout has started. on_failure: called, in any thread, if a thread that runs
    the site's code ends unexpectedly. It ends the process. on_end: called once, when the loop has ended. on_command:
    receives, in this thread, the commands for this executor.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        identity: ExecutorIdentity,
        *,
        running_tasks: RunningTasks,
        heartbeat: HeartbeatThread,
        database: DatabaseState,
        connection: GuardedConnection,
        on_deadline: Callable[[], None],
        on_failure: Callable[[BaseException], object],
        on_end: Callable[[], None],
        on_command: Callable[[Command], None],
    ) -> None:
        super().__init__(name="loop", daemon=True)
        self.settings, self._identity, self._on_end = settings, identity, on_end
        self.engine, self.executor_id = engine, executor_id = identity.engine, identity.executor_id
        self.running_tasks, self._heartbeat = running_tasks, heartbeat
        self._database, self._connection = database, connection
        self.turns = 0  # of run_once()
        self.failure: BaseException | None = None
        self.moved_at: float | None = None  # monotonic: when the last run_once() began
        self.is_paused = False  # paused, and no claim is under way
        self._should_pause = False
        self._backoff = ReconnectBackoff()
        self._together_at = 0.0  # until then, commits, claims and admissions have transactions of their own
        self._apart_seconds = APART_SECONDS
        self._failing: tuple[float, str] | None = None  # since when no turn has succeeded, and the last error
        self._completed: deque[CompletedAttempt] = deque()  # from the pools, for `outcomes`
        self._wakeup = threading.Event()
        self._stop_requested = threading.Event()  # ends a wait for the database

        context = PoolContext(on_completed=self._on_completed, on_deadline=on_deadline, on_failure=on_failure)
        self.pools: dict[PoolName, Pool] = {
            PoolName.THREADS: ThreadPool(settings.threads, context),
            PoolName.ASYNC: AsyncPool(settings.async_slots, context),
        }
        self.callbacks = ResultCallbacks(engine, self._on_callbacks_progress, on_failure)
        self.threads = ThreadGroup((*self.pools.values(), self.callbacks))
        self._policy = ClaimPolicy(engine, settings, executor_id, self.pools, running_tasks.uncompleted)
        self._budgets = Budgets(connection)
        self._maintenance = Maintenance(
            engine,
            executor_id,
            heartbeat,
            self._budgets,
            self._policy.claim_soon,
            self._on_admitted,
            on_command,
            self.callbacks.submit_enqueued,
            self._look_for_code,
        )
        self.claims = Claimer(identity, self._policy, self.pools, running_tasks, self._maintenance, self._budgets)
        self.outcomes = Outcomes(
            identity,
            running_tasks,
            connection,
            heartbeat,
            self._maintenance,
            self._budgets,
            self.callbacks,
            completed=self._completed,
            expect=self._policy.expect,
            admit_soon=self.admit_soon,
            on_ended=self.claims.ended,
            on_succeeded=self.claims.succeeded,
        )
        self.stop = Stop(
            settings,
            identity,
            running_tasks,
            connection,
            self.claims,
            self.outcomes,
            self.callbacks,
            self._maintenance,
        )

    # --- the loop

    def run(self) -> None:
        ends.here.deliver = self.callbacks.submit_ended
        try:
            while not self.stop.is_over(self._backoff.tries):
                self.moved_at = time.monotonic()
                try:
                    with self._connection:
                        self.run_once()
                except django.db.Error as error:
                    self._on_error(error)
                    if self.stop.is_abandoned and self._backoff.tries >= LAST_TRIES:
                        break
                    self._stop_requested.wait(self._backoff.next_seconds())
                    self._stop_requested.clear()
                    continue
                self._database.reached("loop")
                self._backoff.reset()
                self._failing = None
                self._wakeup.wait(self._idle_seconds())
                self._wakeup.clear()
        except BaseException as failure:  # the process must not live on without its loop
            self.failure = failure
            logger.exception("executor.loop_crashed")
        finally:
            self._connection.drop()
            self._on_end()

    def run_once(self) -> None:
        """Commit, claim, submit, confirm, maintain. Raises django.db.Error, and loses no task and no outcome then."""
        self.turns += 1
        self._update_pause()
        self.outcomes.collect()
        self._keep(self.claims.evict_waiting(is_stopping=self.is_stopping))
        self.outcomes.count_starts()
        outcomes = self.running_tasks.pending()
        request = self.claims.request(self._claim_budget(), with_commit=bool(outcomes))
        result, claims = self._commit_and_claim(outcomes, request)
        self._keep(self.claims.submit(claims))
        self.outcomes.confirm(result)
        self.outcomes.write_reports(result, is_last=self.stop.is_abandoned or not self.running_tasks)
        self.callbacks.submit()
        self.claims.notify_others(request, claims)
        self.claims.park()
        self.claims.refresh()
        if self.stop.is_abandoned:
            self.stop.release_all()
        else:
            self._maintain()
            self.outcomes.commit_again()

    def _keep(self, completed: Sequence[CompletedAttempt]) -> None:
        if completed:
            self.outcomes.complete(completed)

    def _commit_and_claim(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> tuple[CommitResult, ClaimedBatch]:
        if not outcomes and request.limit == 0:
            return CommitResult(), self.claims.claim_isolated() if self._is_turn_of_isolated() else ClaimedBatch()
        if time.monotonic() < self._together_at:
            return self.outcomes.commit(outcomes), self.claims.claim(request)
        began_at = time.monotonic()
        may_admit = not self._budgets.has_failed("admit")
        should_admit = may_admit and (self._maintenance.pop_admission_wish() or self.running_tasks.may_unblock_others)
        returning = [*self.claims.awaiting_code.fitting]
        try:
            result, claims = self.engine.commit_and_claim(
                outcomes, request, should_admit=should_admit, returning=returning
            )
        except (django.db.Error, MemoryError) as error:
            if self.outcomes.has_timed_out(error):
                # One of the three is too slow. For a while, each has a transaction and a time of its own.
                self._together_at = time.monotonic() + self._apart_seconds
                self._apart_seconds = min(MAX_APART_SECONDS, 2 * self._apart_seconds)
            self.outcomes.commit_failed(outcomes, error, began_at, is_alone=request.is_empty)
            raise as_database_error(error) from error.__cause__
        self._apart_seconds = APART_SECONDS
        if should_admit:
            self._maintenance.admitted(claims.admitted)
        self.outcomes.committed(result)
        self.claims.claimed(request, claims, began_at)
        return result, claims

    def _maintain(self) -> None:
        if self._maintenance.due_in_seconds > 0.0:
            return
        running = self.running_tasks.snapshot()
        self._maintenance.run_if_due(list(running))
        if not self.is_stopping:
            self.claims.look_for_isolated(is_idle=not running)

    def _idle_seconds(self) -> float:
        """Return how long to wait for an event."""
        if self.claims.is_resting:
            return AGAIN_SECONDS
        if self.outcomes.has_completed or self.stop.is_abandoned or self._is_turn_of_isolated():
            return 0.0
        if self.claims.should_park:
            return 0.0
        waits = [self._maintenance.due_in_seconds, self._policy.wait_seconds(self._claim_budget())]
        if self.running_tasks.has_completed:
            waits.append(AGAIN_SECONDS)
        if self.running_tasks.has_uncounted:
            waits.append(COUNT_START_SECONDS)
        if self.settings.burst and not self.running_tasks:
            waits.append(BURST_CHECK_SECONDS)
        return max(0.0, min(waits))

    def _on_error(self, error: Exception) -> None:
        """Expect that a claim or a commit without an answer may have succeeded."""
        if not self._connection.has_timed_out(error):
            self._database.lost("loop", error)
        self._failing = (time.monotonic() if self._failing is None else self._failing[0]), format_first_line(error)
        self._connection.drop(error)
        self.running_tasks.mark_in_doubt()
        self._maintenance.expect_unknown_claims()

    # --- from other threads

    def on_notification(self, queue: str) -> None:
        """Note that a queue has work."""
        if self._policy.on_notification(queue):
            self._wakeup.set()

    def check_everything_soon(self) -> None:
        """Look for work now, and for messages."""
        self._policy.claim_soon()
        self._maintenance.sweep_soon()
        self._wakeup.set()

    def admit_soon(self, queue: str) -> None:
        """Check the limits soon: one may let a BLOCKED task of a queue run. Without a name: of any queue."""
        if queue and not self._policy.on_notification(queue):
            return
        if not queue:
            self._policy.claim_soon()
        self._maintenance.admit_soon()
        self._wakeup.set()

    def isolate_tasks_of(self, executor_id: UUID) -> None:
        """
        Isolate the tasks of a process that one of them has frozen. This process takes its place. Call it before the
        start.
        """
        self._maintenance.isolate_tasks_of(executor_id)

    def set_paused(self, is_paused: bool) -> None:
        """Pause or resume. The attribute `is_paused` changes when no claim is under way any more."""
        self._should_pause = is_paused
        self.check_everything_soon()

    @property
    def is_stopping(self) -> bool:
        """Whether it claims nothing more, and ends."""
        return self.stop.is_stopping

    def stop_claiming(self) -> None:
        """Claim nothing more, finish what runs, release the rest, end."""
        self.stop.is_stopping = True
        self._identity.stop.set()
        self._stop_requested.set()
        self._wakeup.set()

    def end_after_these(self) -> None:
        """Claim nothing more, wait without limit for what was claimed, then end."""
        self.stop.is_last = True
        self._wakeup.set()

    def abandon(self) -> None:
        """Release all remaining tasks now, and end."""
        self.stop.is_abandoned = True
        self.stop_claiming()

    def abandon_task(self, task: RunningTask) -> None:
        """Wait no longer for a body that does not stop; its claim ends with this process."""
        self.stop.abandoned_tasks.add(task.id)
        self._wakeup.set()

    def _on_completed(self, completed: CompletedAttempt) -> None:
        self._completed.append(completed)
        if not self._wakeup.is_set():
            self._wakeup.set()

    def _on_callbacks_progress(self) -> None:
        if self.callbacks.backlog or len(self.running_tasks) <= len(self.stop.abandoned_tasks):
            self._wakeup.set()  # otherwise the end of a body wakes it

    def stuck(self) -> tuple[float, str] | None:
        """Return for how many seconds the loop has committed nothing that it tried to, and why; None if it commits."""
        stuck = [slow] if (slow := self.outcomes.stuck()) is not None else []
        if (failing := self._failing) is not None:
            since, error = failing
            stuck.append((time.monotonic() - since, f"No turn of its loop has succeeded since: {error}"))
        return max(stuck, default=None)

    # --- what it may claim

    def _update_pause(self) -> None:
        """Pause or resume between two claims, so that none is under way."""
        if self.is_paused is not self._should_pause:
            self.is_paused = self._should_pause
            if self.is_paused:
                logger.info("executor.paused hint=No tasks are claimed until SIGCONT or resume.")
            self._heartbeat.beat_soon()  # the row shows it at once

    def _claim_budget(self) -> int:
        """Return how many tasks this process may claim now, apart from isolated ones."""
        return 0 if self.claims.isolation.is_active else self._remaining_tasks()

    def _remaining_tasks(self) -> int:
        """Return how many tasks this process may still claim."""
        if (
            self.is_stopping
            or self.stop.is_last
            or self.is_paused
            or self._heartbeat.is_fenced()
            or self.callbacks.is_full
        ):
            return 0
        return UNLIMITED if self.settings.max_tasks is None else max(0, self.settings.max_tasks - self.claims.number)

    def _is_turn_of_isolated(self) -> bool:
        return self.claims.isolation.is_waiting and not self.running_tasks and self._remaining_tasks() > 0

    # --- for maintenance

    def _look_for_code(self, has_waiting: bool) -> int:
        """
        Find tasks that wait for code that this process has. Fail those that have waited for as long as they may.

        Return how many.
        """
        if not has_waiting or not self._remaining_tasks():
            self.claims.awaiting_code.has_looked = True
            return 0
        ended = self.claims.end_code_waits()
        self._keep(ended)
        return len(ended) + self.claims.awaiting_code.look()

    def _on_admitted(self, queues: Mapping[str, int]) -> None:
        self.claims.admitted(queues, can_claim=self._claim_budget() > 0)
