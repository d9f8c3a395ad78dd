"""Health: whether the threads of an executor move, and whether it can be relied on. The supervisor sums it up."""

from __future__ import annotations

import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from jobqueue.conf.options import Options
from jobqueue.executor.database.connection import DatabaseState
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.loop import ExecutorLoop
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.text import printable

logger = get_logger(__name__)

REPORT_SECONDS = 1.0
READ_BYTES = 65536
MIN_STALL_SECONDS = 5.0  # a busy machine may be slow, even if HEARTBEAT_TIMEOUT is short
# After so many heartbeat timeouts in which it commits nothing, an executor that reaches the database has stalled: other
# executors rescue its tasks when it is restarted. An outcome that never fits is given up well before that.
STUCK_TIMEOUTS = 10
PROBLEM_CHARACTERS = 1000
DATABASE_MODULES = ("django.db.backends", "psycopg", "sqlite3")


@dataclass(frozen=True, slots=True)
class HealthProblem:
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """The problems of an executor, or of all executors of a command."""

    stalled: tuple[HealthProblem, ...] = ()  # reasons to restart it
    unready: tuple[HealthProblem, ...] = ()  # reasons not to rely on it
    is_stopping: bool = False  # it claims no more tasks, and ends
    was_stopped_on_request: bool = False  # a `stop` command has reached it, so that the supervisor must not replace it
    executor_id: str = ""  # of one executor; empty for more than one

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> HealthStatus:
        """Decode a status. Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)


def freeze_limit(options: Options) -> float:
    """Return after how many seconds of silence a child is killed: before others rescue its tasks."""
    return max(MIN_STALL_SECONDS, options.heartbeat_timeout * 2 / 3)


Report = Callable[[HealthStatus], None]


def stall_limit(options: Options) -> float:
    """Return after how many seconds without a move a thread or a process has stalled."""
    return max(MIN_STALL_SECONDS, options.heartbeat_timeout)


class HealthMonitor:
    """Looks at the threads of one executor. A thread that waits for the database has not stalled."""

    def __init__(
        self,
        name: str,
        loop: ExecutorLoop,
        heartbeat: HeartbeatThread,
        database_state: DatabaseState,
        limit_seconds: float,
    ) -> None:
        self._name, self._loop, self._heartbeat, self._database_state = name, loop, heartbeat, database_state
        self._limit = limit_seconds
        self.was_stopped_on_request = False

    def status(self) -> HealthStatus:
        stalled = tuple(HealthProblem(self._name, what) for what in self._stalled(STUCK_TIMEOUTS * self._limit))
        unready = tuple(HealthProblem(self._name, what) for what in self._unready())
        return HealthStatus(
            stalled,
            stalled + unready,
            self._loop.is_stopping,
            self.was_stopped_on_request,
            str(self._loop.executor_id),
        )

    def problem(self) -> str | None:
        """Say for the heartbeat why the executor makes no progress: what has been wrong for longer than the limit."""
        blocked = () if self._loop.is_stopping else self._loop.threads.blocked(self._limit)
        problems = (*self._stalled(self._limit), *self._loop.outcomes.waiting(self._limit), *blocked)
        return printable(" ".join(problems))[:PROBLEM_CHARACTERS] or None

    def _stalled(self, stuck_seconds: float) -> Iterator[str]:
        """Name the threads that have stalled or ended. stuck_seconds: for how long the loop may commit nothing."""
        for thread, what in ((self._loop, "loop"), (self._heartbeat, "heartbeat thread")):
            moved_at = thread.moved_at  # None before its start
            silent = 0.0 if moved_at is None else time.monotonic() - moved_at
            if silent > self._limit and thread.is_alive() and not waits_for_database(thread):
                yield f"The {what} has not moved for {silent:.0f} s."
            if moved_at is not None and not thread.is_alive() and not self._loop.is_stopping:
                yield f"The {what} has ended."
        if not self._loop.is_stopping:
            yield from self._loop.threads.stalled()
        if (stuck := self._stuck(stuck_seconds)) is not None:
            yield stuck

    def _stuck(self, limit_seconds: float) -> str | None:
        """Say what fails in the loop for so long, although its heartbeats reach the database."""
        stuck = self._loop.stuck()
        if stuck is None or not self._heartbeat.reaches_database or self._database_state.is_unreachable:
            return None
        seconds, what = stuck
        return f"Stuck for {seconds:.0f} s. {what}" if seconds > limit_seconds else None

    def _unready(self) -> Iterator[str]:
        if self._loop.is_stopping:
            yield "It is stopping."
        else:
            yield from self._loop.threads.blocked(self._limit)
        if self._stuck(STUCK_TIMEOUTS * self._limit) is None and (stuck := self._stuck(0.0)) is not None:
            yield stuck
        yield from self._loop.outcomes.waiting(self._limit)
        if self._loop.is_paused:
            yield "It is paused: it claims nothing."
        if not self._heartbeat.has_beaten:
            yield "It is not registered yet: no heartbeat has reached the database."
        elif self._database_state.is_unreachable or not self._heartbeat.reaches_database:
            yield "The database is unreachable."


def waits_for_database(thread: threading.Thread) -> bool:
    """
    Return whether a thread is inside a call of the database driver.

    Only its stack shows that: a connect to a server that is gone can take minutes without an error.
    """
    stack = traceback.walk_stack(sys._current_frames().get(thread.ident or 0))
    return any(str(frame.f_globals.get("__name__")).startswith(DATABASE_MODULES) for frame, _ in stack)


class HealthReporter(threading.Thread):
    """Reports the status each second, if a supervisor or systemd wants it."""

    def __init__(self, status: Callable[[], HealthStatus], report: Report | None) -> None:
        super().__init__(name="reporter", daemon=True)
        self._status, self._report = status, report
        self._woken, self._is_stopping = threading.Event(), False

    def start(self) -> None:
        if self._report is not None:
            super().start()

    def report_soon(self) -> None:
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


class StatusReader:
    """Reads what a child process reports: one HealthStatus a line. status: the latest, None before the first."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection, self._incomplete = connection, b""
        self.status: HealthStatus | None = None
        self.reported_at = time.monotonic()

    def read(self) -> None:
        """Read what has arrived, without waiting."""
        with suppress(OSError):  # nothing has arrived, or the child has ended
            while received := self._connection.recv(READ_BYTES):
                *lines, self._incomplete = (self._incomplete + received).split(b"\n")
                for line in lines:
                    self._accept(line)

    def close(self) -> None:
        """Read the rest, after the child has ended."""
        self.read()
        self._connection.close()

    @property
    def was_stopped_on_request(self) -> bool:
        return self.status is not None and self.status.was_stopped_on_request

    def _accept(self, line: bytes) -> None:
        try:
            self.status, self.reported_at = HealthStatus.from_json(line), time.monotonic()
        except msgspec.DecodeError as error:  # a task has written to the socket
            logger.warning("health.report_rejected error=%s", error)


class HealthAggregator:
    """
    Sums up the children's reports. The supervisor's loop calls update(), any thread status().

    limit_seconds: silence after which a process has stalled, the supervisor included. report: receives each sum.
    """

    def __init__(self, limit_seconds: float, report: Report | None = None) -> None:
        self._limit, self._report = limit_seconds, report
        self._updated_at = time.monotonic()
        self._status = HealthStatus(unready=(HealthProblem("supervisor", "It is starting."),))

    def update(self, children: Mapping[int, StatusReader], expected: int, *, is_stopping: bool) -> None:
        """Read the children's reports. children: by process id. expected: how many there should be."""
        stalled: list[HealthProblem] = []
        unready: list[HealthProblem] = []
        for pid, reader in children.items():
            reader.read()
            silent = time.monotonic() - reader.reported_at
            if silent > self._limit:
                stalled.append(HealthProblem(f"process {pid}", f"It has not moved for {silent:.0f} s."))
            elif reader.status is None:
                unready.append(HealthProblem(f"process {pid}", "It is starting."))
            else:
                stalled += reader.status.stalled
                unready += [problem for problem in reader.status.unready if problem not in reader.status.stalled]
        if is_stopping:
            unready.append(HealthProblem("supervisor", "It is stopping."))
        elif missing := expected - len(children):
            unready.append(HealthProblem("supervisor", f"{missing} of {expected} processes do not run."))
        self._status = HealthStatus(tuple(stalled), (*stalled, *unready), is_stopping)
        self._updated_at = time.monotonic()
        if self._report is not None:
            self._report(self._status)

    def status(self) -> HealthStatus:
        """Return the sum. A supervisor that has stopped updating it is a problem of its own."""
        silent, status = time.monotonic() - self._updated_at, self._status
        if silent <= self._limit:
            return status
        problem = HealthProblem("supervisor", f"It has not moved for {silent:.0f} s.")
        return HealthStatus((problem, *status.stalled), (problem, *status.unready), status.is_stopping)
