"""The heartbeat thread: it writes this executor's heartbeats, and finds lost claims and requests to cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

import django.db

from jobqueue.engine import Engine, schema_problem
from jobqueue.exceptions import ClaimLost, TaskCancelled
from jobqueue.executor.database.connection import DatabaseState, GuardedConnection, ReconnectBackoff
from jobqueue.executor.running.attempt import RunningTask
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import ExecutorInfo, OwnedTask
from jobqueue.values.text import printable

logger = get_logger(__name__)


class HeartbeatThread(threading.Thread):
    """
    Sends a heartbeat every third of HEARTBEAT_TIMEOUT, on a connection of its own.

    The answer lists the tasks that the database has as ours, and which of them are to be cancelled.

    It has more than 15 attributes because other threads ask for the result of its last heartbeat.
    """

    def __init__(
        self,
        engine: Engine,
        executor_info: Callable[[], ExecutorInfo],
        running_tasks: RunningTasks,
        database_state: DatabaseState,
        connection: GuardedConnection,
        on_first_beat: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._engine, self._executor_info, self._running_tasks = engine, executor_info, running_tasks
        self._database_state, self._connection = database_state, connection
        self._on_first_beat = on_first_beat
        self._timeout = engine.options.heartbeat_timeout
        self._late_seconds = self._timeout / 2
        self._woken = threading.Event()
        self._is_stopping = False
        self.has_beaten = False
        self.problem = "No heartbeat reached the database"  # why there was none so far
        self.last_good_at = time.monotonic()
        self.has_unknown_claims = False  # two heartbeats in a row saw a claim of ours that this process does not know
        self._unknown: set[tuple[UUID, int]] = set()
        self._punctual_since: float | None = None  # monotonic; None after a failure
        self._clock: tuple[datetime, float] | None = None  # the database's time and ours at the last check
        self._set_back_seconds = 0.0
        self._clock_lock = threading.Lock()
        self.failure: BaseException | None = None
        self.moved_at: float | None = None  # monotonic; start of the last heartbeat

    @property
    def may_rescue(self) -> bool:
        """
        Return whether our heartbeats have been punctual for a full timeout.

        Otherwise the database may have been unreachable, and living executors look silent, too. The same is true
        if this process stood still, or if another thread has lost its connection since our last heartbeat: a backup
        may have been restored.
        """
        since, now = self._punctual_since, time.monotonic()
        return (
            since is not None
            and now - self.last_good_at <= self._late_seconds
            and now - since >= self._timeout
            and self.last_good_at > self._database_state.last_lost_at
        )

    def may_still_rescue(self) -> bool:
        """Check the database's clock, too: a silent executor may be the effect of a jump. From any thread."""
        self._check_clock()
        return self.may_rescue

    def _check_clock(self) -> None:
        """
        Begin to count punctual heartbeats again if the database's clock was set forward. Note if it was set back.

        After a full timeout all living executors have sent a heartbeat by the new time.
        """
        now, ours = self._engine.db.now(), time.monotonic()
        with self._clock_lock:
            previous, previous_ours = self._clock or (now, ours)
            self._clock = now, ours
            ahead = (now - previous).total_seconds() - (ours - previous_ours)
            is_set_back = ahead < -self._timeout / 3
            if is_set_back:
                self._set_back_seconds -= ahead
            elif ahead <= self._timeout / 3 or self._punctual_since is None:
                return
            else:
                self._punctual_since = ours
        if is_set_back:
            logger.warning("clock.jumped ahead_s=%.1f hint=Scheduled tasks start so much later.", ahead)
            return
        logger.warning("clock.jumped ahead_s=%.1f hint=Rescues pause for HEARTBEAT_TIMEOUT.", ahead)

    def take_set_back_seconds(self) -> float:
        """Return by how much the database's clock was set back since the last call."""
        with self._clock_lock:
            seconds, self._set_back_seconds = self._set_back_seconds, 0.0
        return seconds

    @property
    def reaches_database(self) -> bool:
        """Return whether the last heartbeat succeeded, and is not old."""
        return self._punctual_since is not None and not self.is_fenced()

    def is_fenced(self) -> bool:
        """Return whether the last successful heartbeat is so old that other executors may soon rescue our tasks."""
        return self.has_beaten and time.monotonic() - self.last_good_at > self._timeout - min(5.0, self._timeout / 6)

    def beat_soon(self) -> None:
        """Send a heartbeat now, to see a request to cancel, or to show a new state."""
        self._woken.set()

    def run(self) -> None:
        interval = self._timeout / 3
        backoff = ReconnectBackoff(longest_seconds=min(5.0, interval))
        try:
            while not self._is_stopping:
                self.moved_at = time.monotonic()
                try:
                    if not self.has_beaten and (missing := self._missing()):
                        if missing != self.problem:
                            logger.error("schema.outdated hint=%s", missing)
                        self.problem, wait = missing, backoff.next_seconds()
                    else:
                        self.beat()
                        backoff.reset()
                        wait = self.moved_at + interval - time.monotonic()
                except django.db.Error as error:
                    self._punctual_since, self.problem = None, format_first_line(error)
                    self._database_state.lost("heartbeat", error)
                    self._connection.drop()
                    wait = backoff.next_seconds()
                except MemoryError:  # a task has used it up, and fails soon
                    logger.warning("heartbeat.deferred hint=There is no memory for it.")
                    self._connection.drop()
                    wait = backoff.next_seconds()
                self._woken.wait(max(0.0, wait))
                self._woken.clear()
            self._mark_stopped()
        except BaseException as failure:  # the watchdog ends a process without a heartbeat
            self.failure = failure
            logger.exception("heartbeat.crashed")
        finally:
            self._connection.drop()

    def beat(self) -> None:
        """Send one heartbeat. Raises django.db.Error."""
        began, before = time.monotonic(), self._running_tasks.snapshot()
        with self._connection:
            failpoint("heartbeat.before")
            held = self._engine.executors.heartbeat(self._executor_info())
            failpoint("heartbeat.after")
            if held is None:
                self._connection.restart()
            self._check_clock()
        with self._clock_lock:
            if self._punctual_since is None or began - self.last_good_at > self._late_seconds:
                self._punctual_since = began
            self.last_good_at = began
        self._database_state.reached("heartbeat")
        if not self.has_beaten:
            self.has_beaten = True
            self._on_first_beat()
        if held is not None:
            self._compare(before, {task.id: task for task in held})
            self._find_unknown_claims(held)

    def _missing(self) -> str:
        """
        Describe the changes that the database needs before the first heartbeat; "" if none.

        On tables of older code a claim may work and its commit may not. Tasks would then run again and again.
        """
        database = self._engine.database
        with self._connection:
            return schema_problem(database)

    def _mark_stopped(self) -> None:
        """Mark this executor as stopped. A rescue finds the tasks that it may still have."""
        try:
            if self.has_beaten:
                with self._connection:
                    self._engine.executors.heartbeat(replace(self._executor_info(), state="STOPPED"))
        except django.db.Error as error:
            logger.debug("executor.deregister_failed error=%s", format_first_line(error))

    def _compare(self, before: Mapping[UUID, RunningTask], held: Mapping[UUID, OwnedTask]) -> None:
        """Interrupt tasks that are to be cancelled, and tasks with a lost claim."""
        for pk, running in before.items():
            match held.get(pk):
                case OwnedTask(claim_number=number, is_cancel_requested=requested) if (
                    number == running.claimed.claim_number
                ):
                    if requested and running.reason is None:
                        running.interrupt(TaskCancelled)
                case _ if running.is_armed and running.reason is None and running.interrupt(ClaimLost):
                    # A task that was committed just now is missing, too, but is no longer armed.
                    logger.warning("task.claim_lost task=%s id=%s", printable(running.claimed.task_type), pk)

    def _find_unknown_claims(self, held: Sequence[OwnedTask]) -> None:
        """Find claims that this process does not know. After one heartbeat the answer may still be on its way."""
        unknown = {(task.id, task.claim_number) for task in held if task.id not in self._running_tasks}
        self.has_unknown_claims = not unknown.isdisjoint(self._unknown)
        self._unknown = unknown

    def stop(self) -> None:
        self._is_stopping = True
        self._woken.set()
