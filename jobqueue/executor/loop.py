"""The executor's loop: commit what has completed, claim what fits, start it, then wait for an event."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import django.db

from jobqueue.api import ends
from jobqueue.api.notifications import notifier
from jobqueue.declarations import registry
from jobqueue.declarations.actor import ActorTask
from jobqueue.engine import HEAD_TASKS, MESSAGES_PER_POLL, SHORT_WAIT
from jobqueue.executor.awaiting_code import AwaitingCode
from jobqueue.executor.budgets import Budgets
from jobqueue.executor.callbacks import ResultCallbacks
from jobqueue.executor.claim_policy import ClaimPolicy
from jobqueue.executor.database.connection import DatabaseState, GuardedConnection, ReconnectBackoff
from jobqueue.executor.heartbeat import Heartbeat
from jobqueue.executor.isolation import Isolation
from jobqueue.executor.maintenance import AGAIN_SECONDS, Maintenance
from jobqueue.executor.pools.base import Pool, PoolContext
from jobqueue.executor.pools.event_loop import AsyncPool
from jobqueue.executor.pools.threads import ThreadPool
from jobqueue.executor.running.attempt import CompletedAttempt, ExecutorIdentity, RunningTask, with_start
from jobqueue.executor.running.events import task_fields
from jobqueue.executor.running.task_runner import (
    await_known,
    end_code_wait,
    missing_limits,
    release_for_later,
    release_unstarted,
)
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.settings import ExecutorSettings
from jobqueue.executor.telemetry.errors import first_line_of
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import (
    FINAL,
    NO_EFFECTS,
    WAITING,
    ClaimedBatch,
    ClaimRequest,
    Command,
    CommitResult,
    Outcome,
    PoolName,
    Status,
    StoredMessage,
)
from jobqueue.values.text import printable

logger = get_logger(__name__)

COUNT_START_SECONDS = 0.05  # a body with a rate that runs for longer is counted before its end
EVICT_SECONDS = 1.0  # a task that waited for a slot for so long is released, for other executors
DRAINED_SECONDS = 1.0  # --burst ends when no task is due so soon
BURST_CHECK_SECONDS = 0.1  # how often --burst checks whether other executors are still at work
LAST_TRIES = 6  # of a stop, to release the last claims while the database is unreachable: some three seconds
UNLIMITED = 1_000_000
APART_SECONDS = 10.0  # after a failed transaction that was to commit and claim, both are done apart; doubled each time
MAX_APART_SECONDS = 1000.0
LOST_COMMITS = 3  # in a row by which a connection was lost: the commit may be to blame, as one of a gigabyte
FAMILY_BATCH = 500  # children of a task whose end takes too long, in one transaction
MAX_REPORTS = 1000  # in one write
CLAIMS = ("read_queues", "claim", "claim_isolated")  # calls without which there is nothing to do


@dataclass(slots=True)
class Counters:
    """
    What this process did.

    claimed: without tasks that were released before they started. undelivered: messages that no task will read.
    turns: of the loop.
    """

    claimed: int = 0
    finished: int = 0
    lost: int = 0
    undelivered: int = 0
    turns: int = 0


class ExecutorLoop(threading.Thread):
    """
    Owns one connection, and every claim of this process until its commit.

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
        heartbeat: Heartbeat,
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
        self.counts = Counters()
        self.failure: BaseException | None = None
        self.moved_at: float | None = None  # monotonic: when the last run_once() began
        self.is_draining = False
        self.is_paused = False  # paused, and no claim is under way
        self.is_abandoned = False
        self.abandoned_tasks: set[UUID] = set()
        context = PoolContext(on_completed=self.on_completed, on_deadline=on_deadline, on_failure=on_failure)
        self.pools: dict[PoolName, Pool] = {
            PoolName.THREADS: ThreadPool(settings.threads, context),
            PoolName.ASYNC: AsyncPool(settings.async_slots, context),
        }
        self.callbacks = ResultCallbacks(engine, self._on_callbacks_progress, on_failure)
        self._threads = (*self.pools.values(), self.callbacks)
        self._policy = ClaimPolicy(engine, settings, executor_id, self.pools, running_tasks.uncompleted)
        self._isolation = Isolation(engine.options.heartbeat_timeout)
        self._awaiting_code = AwaitingCode(engine, identity, self._policy.serves, self._policy.queues)
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
        self._backoff = ReconnectBackoff()
        self._together_at = 0.0  # until then, commits, claims and admissions have transactions of their own
        self._apart_seconds = APART_SECONDS
        self._lost_commits = 0  # in a row: the connection was lost
        self._failing: tuple[float, str] | None = None  # since when no turn has succeeded, and the last error
        self._completed: deque[CompletedAttempt] = deque()  # from the pools
        self._queues_with_work: set[str] = set()  # of which other executors are to be notified
        self._should_pause = False
        self._has_released_all = False
        self._wakeup = threading.Event()
        self._stop_requested = threading.Event()  # ends a wait for the database

    # --- the loop

    def run(self) -> None:
        ends.here.deliver = self.callbacks.submit_ended
        try:
            while not self._is_over():
                self.moved_at = time.monotonic()
                try:
                    with self._connection:
                        self.run_once()
                except django.db.Error as error:
                    self._on_error(error)
                    if self.is_abandoned and self._backoff.tries >= LAST_TRIES:
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
        self.counts.turns += 1
        self._update_pause()
        self._collect_completed()
        self._evict_waiting()
        for queue in {*self._awaiting_code.found.values()}:
            self._policy.expect(queue)
        if self.running_tasks.has_uncounted:
            self._budgets.call("count_starts", self._count_starts, None)
        outcomes = self.running_tasks.pending()
        request = self._request(outcomes)
        result, claims = self._commit_and_claim(outcomes, request)
        self._submit(claims)
        self._confirm(result)
        is_last = self.is_abandoned or not self.running_tasks
        self._write_reports(result, is_last=is_last)
        self.callbacks.submit()
        self._notify_others(request, claims)
        if self._awaiting_code.is_parking:
            self._budgets.call("park", self._awaiting_code.park, None, HEAD_TASKS)
        self._awaiting_code.log()
        if self.is_abandoned:
            self._release_all()
        else:
            self._maintain()
            self._commit_again()

    def _count_starts(self, _: int) -> None:
        self.running_tasks.count_starts(after_seconds=COUNT_START_SECONDS)

    def _request(self, outcomes: Sequence[Outcome]) -> ClaimRequest:
        """Return what to claim: nothing for a while, if that cannot be found out."""

        def request(_: int) -> ClaimRequest:
            return self._policy.request(self._claim_budget(), with_commit=bool(outcomes))

        return self._budgets.call(
            "read_queues", request, ClaimRequest(executor_id=self.executor_id, queues=(), limit=0)
        )

    def _commit_and_claim(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> tuple[CommitResult, ClaimedBatch]:
        if not outcomes and request.limit == 0:
            return CommitResult(), self._budgets.call("claim_isolated", self._claim_isolated, ClaimedBatch())
        if time.monotonic() < self._together_at:
            return self._commit(outcomes), self._claim(request)
        began_at = time.monotonic()
        may_admit = not self._budgets.has_failed("admit")
        admits = may_admit and (self._maintenance.take_admission() or self.running_tasks.may_unblock)
        returning = self._awaiting_code.found
        try:
            result, claims = self.engine.commit_and_claim(outcomes, request, admits=admits, returning=[*returning])
        except (django.db.Error, MemoryError) as error:
            if self._has_timed_out(error):
                # One of the three is too slow. For a while, each has a transaction and a time of its own.
                self._together_at = time.monotonic() + self._apart_seconds
                self._apart_seconds = min(MAX_APART_SECONDS, 2 * self._apart_seconds)
            self._on_failed_commit(outcomes, error, began_at, is_alone=request.is_empty)
            raise as_database_error(error) from error.__cause__
        self._apart_seconds, self._lost_commits = APART_SECONDS, 0
        if admits:
            self._maintenance.admitted(claims.admitted)
        if returning and request.limit:
            self._awaiting_code.returned(claims.returned, request.limit)
            self._maintenance.look_for_code_soon()
        if result.done:
            failpoint("commit.after")
        self._policy.claimed(request, claims, began_at)
        return result, claims

    def _commit(self, outcomes: Sequence[Outcome], lock_wait: str | None = None) -> CommitResult:
        """Commit and nothing else. Raises django.db.Error, and keeps the outcomes then."""
        if not outcomes:
            return CommitResult()
        self._connection.restart()
        began_at = time.monotonic()
        try:
            result = self.engine.commits.commit(outcomes, holder=self.executor_id, lock_wait=lock_wait)
        except (django.db.Error, MemoryError) as error:
            self._on_failed_commit(outcomes, error, began_at, is_alone=True)
            raise as_database_error(error) from error.__cause__
        self._lost_commits = 0
        if result.done:
            failpoint("commit.after")
        if any(outcome.may_unblock for outcome in outcomes):
            self._maintenance.admit_soon()
        return result

    def _claim(self, request: ClaimRequest) -> ClaimedBatch:
        """Claim, and nothing else."""
        began_at = time.monotonic()

        returning = [*self._awaiting_code.found]

        def claim(limit: int) -> ClaimedBatch:
            return self.engine.commit_and_claim([], replace(request, limit=limit), returning=returning)[1]

        claims = self._budgets.call("claim", claim, ClaimedBatch(), request.limit) if request.limit else ClaimedBatch()
        if returning and request.limit:
            self._awaiting_code.returned(claims.returned, request.limit)
            self._maintenance.look_for_code_soon()
        if not self._budgets.is_resting("claim"):  # otherwise it is due as before
            self._policy.claimed(request, claims, began_at)
        return claims

    def _commit_again(self) -> None:
        """Commit outcomes of which a commit has failed: those that waited for locks, and some of the slow ones."""
        if locked := self.running_tasks.locked():
            self._confirm(self._commit(locked, SHORT_WAIT))
        if not (slow := self.running_tasks.slow()):
            return
        if (
            self.running_tasks.batches.is_alone(slow)
            and slow[0].effects.cancel_children
            and not self._end_family(slow[0])
        ):
            return
        self._confirm(self._commit(slow))

    def _end_family(self, outcome: Outcome) -> bool:
        """Cancel some children of an outcome whose commit took too long. Return whether it can be committed now."""

        def cancel(limit: int) -> bool:
            return self.engine.commits.cancel_children(outcome, self.executor_id, limit) < limit

        is_done = self._budgets.call("cancel_children", cancel, False, FAMILY_BATCH)
        return is_done or self._budgets.is_smallest("cancel_children")  # otherwise the outcome could never be given up

    def _on_failed_commit(
        self, outcomes: Sequence[Outcome], error: Exception, began_at: float, *, is_alone: bool
    ) -> None:
        """
        Keep outcomes whose commit failed. One that is too slow by itself is given up after some tries.

        A try counts only if a heartbeat was written since its beginning. Otherwise the database may be slow for all.
        """
        if not outcomes:
            return
        is_writable, has_timed_out = self._heartbeat.last_good_at > began_at, self._has_timed_out(error)
        self._lost_commits = 0 if has_timed_out else self._lost_commits + 1
        if 0 < self._lost_commits < LOST_COMMITS:
            return  # before it claims more, the next turn finds out whether this commit has succeeded
        counts = is_alone and is_writable and has_timed_out
        self.running_tasks.mark_in_doubt()
        self.running_tasks.commit_failed(outcomes, first_line_of(error), time.monotonic() - began_at, counts=counts)

    def _has_timed_out(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or self._connection.has_timed_out(error)

    def _write_reports(self, result: CommitResult, *, is_last: bool) -> None:
        def write(limit: int) -> None:
            self._identity.reports.write(self.engine, ended=result.done, is_last=is_last, limit=limit)

        if self._identity.reports:
            self._budgets.call("write_reports", write, None, MAX_REPORTS)

    def _maintain(self) -> None:
        if self._maintenance.due_in_seconds > 0.0:
            return
        running = self.running_tasks.snapshot()
        self._maintenance.run_if_due(list(running))
        if not self.is_draining and self._isolation.should_check(is_idle=not running):
            may_wait = self._maintenance.may_have_isolated
            found = may_wait and self._budgets.call("find_isolated", self._has_isolated, False)
            self._isolation.checked(found)

    def _has_isolated(self, _: int) -> bool:
        return self.engine.claims.has_isolated(self._policy.queues())

    def _idle_seconds(self) -> float:
        """Return how long to wait for an event."""
        if any(map(self._budgets.is_resting, CLAIMS)):
            return AGAIN_SECONDS
        if self._completed or self.is_abandoned or self._is_turn_of_isolated():
            return 0.0
        if self._awaiting_code.is_parking and not self._budgets.is_resting("park"):
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
        self._failing = (time.monotonic() if self._failing is None else self._failing[0]), first_line_of(error)
        self._connection.drop(error)
        self.running_tasks.mark_in_doubt()
        self._maintenance.expect_unknown_claims()

    # --- from other threads

    def on_notification(self, queue: str) -> None:
        """A queue has work."""
        if self._policy.on_notification(queue):
            self._wakeup.set()

    def look_soon(self) -> None:
        """Look for work now, and for messages."""
        self._policy.claim_soon()
        self._maintenance.sweep_soon()
        self._wakeup.set()

    def admit_soon(self, queue: str) -> None:
        """A limit may let a BLOCKED task of a queue run. Without a name: of any queue."""
        if queue and not self._policy.on_notification(queue):
            return
        if not queue:
            self._policy.claim_soon()
        self._maintenance.admit_soon()
        self._wakeup.set()

    def isolate_tasks_of(self, executor_id: UUID) -> None:
        """Before the start: this process takes the place of one that a task has frozen."""
        self._maintenance.isolate_tasks_of(executor_id)

    def set_paused(self, is_paused: bool) -> None:
        """Pause or resume. The attribute `is_paused` changes when no claim is under way any more."""
        self._should_pause = is_paused
        self.look_soon()

    def drain(self) -> None:
        """Claim nothing more, finish what runs, release the rest, end."""
        self.is_draining = True
        self._identity.stop.set()
        self._stop_requested.set()
        self._wakeup.set()

    def abandon(self) -> None:
        """Release all remaining tasks now, and end."""
        self.is_abandoned = True
        self.drain()

    def abandon_task(self, task: RunningTask) -> None:
        """Wait no longer for a body that does not stop; its claim ends with this process."""
        self.abandoned_tasks.add(task.id)
        self._wakeup.set()

    def on_completed(self, completed: CompletedAttempt) -> None:
        """A pool has completed a task."""
        self._completed.append(completed)
        if not self._wakeup.is_set():
            self._wakeup.set()

    def _on_callbacks_progress(self) -> None:
        if self.callbacks.backlog or len(self.running_tasks) <= len(self.abandoned_tasks):
            self._wakeup.set()  # otherwise the end of a body wakes it

    def cut_connections(self) -> None:
        """Close the database connections of bodies and receivers that still run."""
        for threads in self._threads:
            threads.cut_connections()

    def take_waiting_for_connections(self) -> int:
        """Return how many tasks, at most, have waited long for database connections since the last call."""
        return sum(pool.take_waiting_for_connections() for pool in self.pools.values())

    def stuck(self) -> tuple[float, str] | None:
        """Return for how many seconds the loop has committed nothing that it tried to, and why; None if it commits."""
        found = []
        if (failing := self._failing) is not None:
            since, error = failing
            found.append((time.monotonic() - since, f"No turn of its loop has succeeded since: {error}"))
        if slow := self.running_tasks.batches.stuck():
            count, seconds, error = slow
            found.append((seconds, f"The commit of {count} tasks has not succeeded since: {error}"))
        return max(found, default=None)

    def waiting(self, limit_seconds: float) -> Iterator[str]:
        """Say which outcomes have waited longer than the limit for locks of other sessions."""
        waiting = self.running_tasks.batches.waiting()
        if waiting is not None and waiting[1] > limit_seconds:
            count, seconds = waiting
            yield f"{count} ended tasks wait for locks of other sessions, for {seconds:.0f} s. See pg_locks."

    def stalled(self) -> Iterator[str]:
        """Name the threads that have ended unexpectedly. The process should be restarted."""
        return (f"The thread {name} has ended." for threads in self._threads for name in threads.ended_threads())

    def blocked(self, limit_seconds: float) -> Iterator[str]:
        """Name what the site's code has blocked for longer than the limit."""
        return (what for threads in self._threads if (what := threads.blocked(limit_seconds)))

    # --- claims

    def _update_pause(self) -> None:
        """Pause or resume between two claims, so that none is under way."""
        if self.is_paused is not self._should_pause:
            self.is_paused = self._should_pause
            if self.is_paused:
                logger.info("executor.paused hint=No tasks are claimed until SIGCONT or resume.")
            self._heartbeat.beat_soon()  # the row shows it at once

    def _claim_budget(self) -> int:
        """Return how many tasks this process may claim now, apart from isolated ones."""
        return 0 if self._isolation.is_active else self._remaining_tasks()

    def _remaining_tasks(self) -> int:
        """Return how many tasks this process may still claim."""
        if self.is_draining or self.is_paused or self._heartbeat.is_fenced() or self.callbacks.is_full:
            return 0
        return UNLIMITED if self.settings.max_tasks is None else max(0, self.settings.max_tasks - self.counts.claimed)

    def _is_turn_of_isolated(self) -> bool:
        return self._isolation.is_waiting and not self.running_tasks and self._remaining_tasks() > 0

    def _claim_isolated(self, _: int) -> ClaimedBatch:
        """Claim a task that has to run alone, once nothing else runs."""
        if not self._is_turn_of_isolated():
            return ClaimedBatch()
        queues = self._policy.queues()
        request = ClaimRequest(
            executor_id=self.executor_id, queues=queues, limit=1, limited=self._policy.limited(queues)
        )
        claims = self.engine.claims.claim_isolated(request)
        self._isolation.claimed(bool(claims))
        return claims

    def _submit(self, claims: ClaimedBatch) -> None:
        """Give claimed tasks to their pools."""
        if not claims:
            return
        failpoint("claim.after")
        claims, undecided = self._block_missing_limits(claims)
        declared = [registry.get(claimed.task_type) for claimed in claims]
        if not all(declared):
            claims = self._await_code(claims)
            declared = [registry.get(claimed.task_type) for claimed in claims]
        actors = [claimed.id for claimed, task in zip(claims, declared, strict=True) if isinstance(task, ActorTask)]
        # After the claim: a message that comes later makes the actor run again.
        messages = self._read_messages(actors) if actors else {}
        self.counts.claimed += len(claims)
        tasks = [
            RunningTask(claimed, self._identity, messages.get(claimed.id, ()) if messages else ()) for claimed in claims
        ]
        failpoint("begin")
        self.running_tasks.add(tasks)
        by_pool: dict[PoolName, list[RunningTask]] = defaultdict(list)
        for_later = {*actors} - messages.keys() | undecided
        for running, task in zip(tasks, declared, strict=True):
            assert task is not None
            if for_later and running.id in for_later:
                self._complete(release_for_later(running))
                continue
            # Tasks of SQL, or of code in which their function was another, may be stored with the wrong pool.
            by_pool[registry.pool_for(task.func)].append(running)
        for name, of_pool in by_pool.items():
            self.pools[name].submit(of_pool)
        for name, of_pool in by_pool.items():
            if misplaced := [task.id for task in of_pool if task.claimed.pool != name]:
                self._budgets.call("move_to_pool", partial(self._move_to_pool, misplaced, name), None)

    def _await_code(self, claims: ClaimedBatch) -> ClaimedBatch:
        """Let claimed tasks wait that this process has no code for, without waiting for a slot. Return the others."""
        unknown = [claimed for claimed in claims if registry.get(claimed.task_type) is None]
        self.counts.claimed += len(unknown)
        tasks = [RunningTask(claimed, self._identity) for claimed in unknown]
        self.running_tasks.add(tasks)
        for task in tasks:
            self._complete(await_known(task))
        return ClaimedBatch(claimed for claimed in claims if registry.get(claimed.task_type) is not None)

    def _look_for_code(self, has_waiting: bool) -> int:
        """
        Find tasks that wait for code that this process has. Fail those that have waited for as long as they may.

        Return how many. Maintenance calls it.
        """
        if not has_waiting or not self._remaining_tasks():
            self._awaiting_code.has_looked = True
            return 0
        claims = self.engine.code_waits.claim_ended(self.executor_id)
        self.counts.claimed += len(claims)
        tasks = [RunningTask(claimed, self._identity) for claimed in claims]
        self.running_tasks.add(tasks)
        for task in tasks:
            self._complete(end_code_wait(task))
        return len(tasks) + self._awaiting_code.look()

    def _move_to_pool(self, ids: Sequence[UUID], name: PoolName, _: int) -> None:
        self.engine.claims.move_to_pool(ids, name)

    def _read_messages(self, actors: Sequence[UUID]) -> Mapping[UUID, Sequence[StoredMessage]]:
        """
        Return the unread messages of actors. Those that cannot be read are missing.

        After a call that took too long, each actor is asked alone, and for fewer messages. After another such call, the
        next turns ask for the others, so that one turn does not take long.
        """
        found = self._budgets.call(
            "read_messages", partial(self.engine.messages.read_messages, actors), None, MESSAGES_PER_POLL
        )
        if found is not None:
            return {pk: found.get(pk, ()) for pk in actors}
        read: dict[UUID, Sequence[StoredMessage]] = {}
        for pk in actors:
            verb = f"read_messages {pk}"
            one = self._budgets.call(verb, partial(self.engine.messages.read_messages, [pk]), None, MESSAGES_PER_POLL)
            if one is None:
                break
            read[pk] = one.get(pk, ())
        return read

    def _block_missing_limits(self, claims: ClaimedBatch) -> tuple[ClaimedBatch, set[UUID]]:
        """
        Give tasks of SQL, and of code without limits, the limits that their code declares now.

        Return the other tasks, and among these the ones that got no limits because the database did not answer in time.
        """
        if not (found := missing_limits(claims)):
            return claims, set()
        limited = {claimed.id for claimed, _ in found}
        blocked = self._budgets.call("apply_limits", lambda _: self.engine.admissions.apply(found), None)
        if blocked is None:
            return claims, limited
        if len(blocked) < len(found):  # other sessions have locked them: release them, for none may run without limits
            self._maintenance.expect_unknown_claims()
        self._maintenance.admit_soon()
        return ClaimedBatch(claimed for claimed in claims if claimed.id not in limited), set()

    def _evict_waiting(self) -> None:
        """Release tasks that wait too long for a slot, and all of them for a stop or an isolated task."""
        seconds = 0.0 if self.is_draining or self._isolation.is_waiting else EVICT_SECONDS
        for pool in self.pools.values():
            for task in pool.evict(seconds):
                self._complete(release_unstarted(task))

    def _release_all(self) -> None:
        self.running_tasks.count_starts(of_all=True)
        self.engine.commits.release_unknown_claims(self.executor_id, self.abandoned_tasks)
        self.running_tasks.clear()
        self._has_released_all = True

    # --- outcomes

    def _collect_completed(self) -> None:
        while self._completed:
            completed = self._completed.popleft()
            if completed.is_committed:
                if completed.outcome.may_unblock:
                    self.admit_soon(completed.running.claimed.queue_name)
                self._forget(completed, completed.outcome.status)
                self._wake_receivers(completed.wake)
            else:
                self._complete(completed)

    def _complete(self, completed: CompletedAttempt) -> None:
        if completed.outcome.may_unblock:
            self._policy.expect(completed.running.claimed.queue_name)
            completed = with_start(completed)
        if (lost := self.running_tasks.complete(completed)) is not None:
            self._forget(lost, None)

    def _confirm(self, result: CommitResult) -> None:
        for completed, status in self.running_tasks.confirm(result):
            self._forget(completed, status)
        self._wake_receivers(result.wake)

    def _wake_receivers(self, ids: frozenset[UUID]) -> None:
        if ids:
            self._connection.restart()
            self.engine.messages.wake_or_defer(ids)
            self._connection.restart()  # it logs a failure and leaves the rest to the sweep

    def _forget(self, completed: CompletedAttempt, status: Status | None) -> None:
        """Let go of a task. status: the state it entered, None where its claim was lost."""
        task = completed.running
        self.running_tasks.remove(task)
        self._isolation.ended()
        self._policy.ended(task.claimed.queue_name)
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
        elif task.started_at is None:
            self.counts.claimed -= 1
        if status in WAITING:
            self._maintenance.expect_wake(completed.outcome)
        elif status is Status.AWAITING_CODE:
            self._awaiting_code.parked(task.claimed, completed.error)
        if has_made_ready(completed.outcome, status):
            self._queues_with_work |= {child.queue_name for child in completed.outcome.effects.spawn}
            self._policy.claim_soon()
        self.callbacks.add(completed, status)

    def _on_admitted(self, queues: Mapping[str, int]) -> None:
        """Notify other executors of admitted tasks that this one cannot claim at once. Maintenance calls it."""
        free = sum(max(0, pool.free_slots()) for pool in self.pools.values()) if self._claim_budget() else 0
        self._queues_with_work |= {
            queue for queue, count in queues.items() if count > free or not self._policy.serves(queue)
        }

    def _notify_others(self, request: ClaimRequest, claims: ClaimedBatch) -> None:
        self._queues_with_work |= self._policy.queues_below_limit(request, claims)
        if claims.admitted is not None:
            claimed = Counter(task.queue_name for task in claims)
            admitted = claims.admitted.queues
            self._queues_with_work |= {name for name, count in admitted.items() if count > claimed[name]}
        if self._queues_with_work and self.engine.options.notify:
            queues, self._queues_with_work = self._queues_with_work, set()
            self._budgets.call("notify", lambda _: notifier.send(self.engine, queues), None)

    # --- the end

    def _is_over(self) -> bool:
        if self._has_released_all:
            return True
        running = self.running_tasks.snapshot().keys() - self.abandoned_tasks
        if running or self._completed or self.running_tasks.has_completed or self.callbacks.backlog:
            return False
        if self._maintenance.may_have_unknown_claims and self._backoff.tries < LAST_TRIES:
            return False
        if self.is_draining or self.counts.claimed == self.settings.max_tasks:
            return True
        if not (self.settings.burst and self._policy.is_satisfied and self._awaiting_code.has_looked):
            return False
        return not self._awaiting_code.found and self._has_no_work_left()

    def _has_no_work_left(self) -> bool:
        try:
            with self._connection:
                is_drained = self.engine.queues.is_drained(self.settings.queues, DRAINED_SECONDS)
        except django.db.Error:
            return False  # the next turn meets the same outage, and waits for its end
        if not is_drained:
            self._policy.claim_soon()
        return is_drained

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads. Return whether all have ended."""
        have_ended = [threads.close(timeout_seconds) for threads in self._threads]
        return all(have_ended)


def as_database_error(error: django.db.Error | MemoryError) -> django.db.Error:
    """Return the error as one of the database: the outcomes of a commit did not fit into memory."""
    return django.db.OperationalError("out of memory") if isinstance(error, MemoryError) else error


def has_made_ready(outcome: Outcome, status: Status) -> bool:
    """Whether a commit made tasks READY, its own or others."""
    has_notified_parent = outcome.parent_id is not None and status in FINAL
    is_ready_itself = outcome.has_succeeded and status is Status.READY
    return has_notified_parent or outcome.effects is not NO_EFFECTS or is_ready_itself
