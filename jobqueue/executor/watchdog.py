"""The watchdog thread: timeouts, hung connections, a lost heartbeat, tasks that ignore an interruption."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from jobqueue.exceptions import ClaimLost, ShuttingDown, TaskTimeout
from jobqueue.executor.database.connection import GuardedConnection
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.running.attempt import RunningTask
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

CHECK_SECONDS = 0.5  # between two checks, if no deadline is nearer
REPEAT_SECONDS = 10.0  # until a task that swallowed the interruption is interrupted again


class Watchdog(threading.Thread):
    """Checks everything that must not last too long. It never talks to the database, so that nothing can block it."""

    def __init__(
        self,
        running_tasks: RunningTasks,
        heartbeat: HeartbeatThread,
        connections: Iterable[GuardedConnection],
        grace_seconds: float,
        on_stuck: Callable[[RunningTask], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._running_tasks, self._heartbeat, self._connections = running_tasks, heartbeat, list(connections)
        self._grace = grace_seconds
        self._on_stuck, self._on_failure = on_stuck, on_failure
        self._woken = threading.Event()
        self._is_stopping = False
        self._was_fenced = False

    def check_soon(self) -> None:
        """Do not wait for the next check: a task with a short timeout has started."""
        self._woken.set()

    def run(self) -> None:
        try:
            while not self._is_stopping:
                try:
                    wait = self._check()
                except MemoryError:  # a task has used it up; the next check finds what this one did not
                    wait = CHECK_SECONDS
                self._woken.wait(wait)
                self._woken.clear()
        except BaseException as failure:  # without a watchdog, timeouts have no effect and connections hang for ever
            logger.exception("watchdog.crashed")
            self._on_failure(failure)

    def _check(self) -> float:
        """Check once. Return the seconds until the next check."""
        now = time.monotonic()
        wait = CHECK_SECONDS
        for running in self._running_tasks.snapshot().values():
            if not running.is_armed:
                continue
            if running.first_interrupted_at is not None:  # a poll is not, if it was cancelled: its timeout still counts
                self._check_interrupted(running, now)
            elif running.deadline_at is not None and running.deadline_at <= now:
                running.interrupt(TaskTimeout)
            elif running.deadline_at is not None:
                wait = min(wait, running.deadline_at - now)
        self._check_heartbeat()
        for connection in self._connections:
            connection.cut_if_hung()
        return wait

    def _check_interrupted(self, running: RunningTask, now: float) -> None:
        # A shutdown alone makes no task stuck: it is released when its time is over, whether it reacts or not.
        if running.reason is None or running.first_interrupted_at is None:
            return
        if running.reason is not ShuttingDown and now - running.first_interrupted_at > self._grace:
            self._on_stuck(running)
        elif running.interrupted_at is None or now - running.interrupted_at > REPEAT_SECONDS:
            running.interrupt(running.reason)

    def _check_heartbeat(self) -> None:
        if self._heartbeat.failure is not None:
            self._on_failure(self._heartbeat.failure)
        is_fenced = self._heartbeat.is_fenced()
        if is_fenced and not self._was_fenced:
            logger.error(
                "executor.fenced silent_s=%.1f hint=No heartbeat reached the database. Running tasks are interrupted.",
                time.monotonic() - self._heartbeat.last_good_at,
            )
            for running in self._running_tasks.snapshot().values():
                if running.is_armed and running.reason is None:
                    running.interrupt(ClaimLost)
        self._was_fenced = is_fenced

    def stop(self) -> None:
        self._is_stopping = True
        self._woken.set()
