"""The health of one executor: whether its threads move, and whether it can be relied on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from jobqueue.conf import Options
from jobqueue.executor.database.state import DatabaseState
from jobqueue.executor.heartbeat import Heartbeat
from jobqueue.executor.loop import ExecutorLoop

REPORT_SECONDS = 1.0
MIN_STALL_SECONDS = 5.0  # a busy machine may be slow, even if HEARTBEAT_TIMEOUT is short
DATABASE_MODULES = ("django.db.backends", "psycopg", "sqlite3")


@dataclass(frozen=True, slots=True)
class Problem:
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """
    What is wrong with an executor, or with all executors of a command.

    stalled: reasons to restart it. unready: reasons not to rely on it. was_stopped_on_request: a `stop` command has
    reached it, so that the supervisor must not replace it.
    """

    stalled: tuple[Problem, ...] = ()
    unready: tuple[Problem, ...] = ()
    is_stopping: bool = False
    was_stopped_on_request: bool = False

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> HealthStatus:
        """Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)


def stall_limit(options: Options) -> float:
    """Return after how many seconds without a move a thread or a process has stalled."""
    return max(MIN_STALL_SECONDS, options.heartbeat_timeout)


class HealthMonitor:
    """Looks at the threads of one executor. A thread that waits for the database has not stalled."""

    def __init__(
        self, name: str, loop: ExecutorLoop, heart: Heartbeat, outage: DatabaseState, limit_seconds: float
    ) -> None:
        self._name, self._loop, self._heartbeat, self._outage = name, loop, heart, outage
        self._limit = limit_seconds
        self.was_stopped_on_request = False

    def status(self) -> HealthStatus:
        stalled = tuple(Problem(self._name, what) for what in self._stalled())
        unready = tuple(Problem(self._name, what) for what in self._unready())
        return HealthStatus(stalled, stalled + unready, self._loop.is_draining, self.was_stopped_on_request)

    def _stalled(self) -> Iterator[str]:
        for thread, what in ((self._loop, "loop"), (self._heartbeat, "heartbeat thread")):
            moved_at = thread.moved_at  # None before its start
            silent = 0.0 if moved_at is None else time.monotonic() - moved_at
            if silent > self._limit and thread.is_alive() and not waits_for_database(thread):
                yield f"The {what} has not moved for {silent:.0f} s."
            if moved_at is not None and not thread.is_alive() and not self._loop.is_draining:
                yield f"The {what} has ended."
        if not self._loop.is_draining:
            yield from self._loop.stalled()

    def _unready(self) -> Iterator[str]:
        if self._loop.is_draining:
            yield "It is stopping."
        else:
            yield from self._loop.blocked(self._limit)
        if self._loop.is_paused:
            yield "It is paused: it claims nothing."
        if not self._heartbeat.has_beaten:
            yield "It is not registered yet: no heartbeat has reached the database."
        elif self._outage.is_on or not self._heartbeat.reaches_database:
            yield "The database is away."


def waits_for_database(thread: threading.Thread) -> bool:
    """
    Return whether a thread is inside a call of the database driver.

    Only its stack shows that: a connect to a server that is gone can take minutes without an error.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(DATABASE_MODULES):
            return True
        frame = frame.f_back
    return False


class HealthReporter(threading.Thread):
    """Reports the status each second, if a supervisor or systemd wants it."""

    def __init__(self, status: Callable[[], HealthStatus], report: Callable[[HealthStatus], None] | None) -> None:
        super().__init__(name="reporter", daemon=True)
        self._status, self._report = status, report
        self._woken, self._is_stopping = threading.Event(), False

    def start(self) -> None:
        if self._report is not None:
            super().start()

    def wake(self) -> None:
        """Report now, because the status has changed."""
        self._woken.set()

    def run(self) -> None:
        while self._report is not None:
            is_last = self._is_stopping
            self._report(self._status())
            if is_last:
                return
            self._woken.wait(REPORT_SECONDS)
            self._woken.clear()

    def stop(self) -> None:
        """Report once more, and end."""
        self._is_stopping = True
        self._woken.set()
        if self.is_alive():
            self.join(REPORT_SECONDS)
