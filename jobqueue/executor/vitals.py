"""How one executor is: whether its loop and its heartbeat thread move, and whether it can be counted on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

from jobqueue.conf import Options
from jobqueue.executor.health import Complaint, Health
from jobqueue.executor.heartbeat import Heart
from jobqueue.executor.outage import Outage
from jobqueue.executor.pulse import Pulse

REPORT_SECONDS = 1.0
LEAST_LIMIT_SECONDS = 5.0  # even where HEARTBEAT_TIMEOUT is short, a busy machine may be slow
OF_THE_DATABASE = ("django.db.backends", "psycopg", "sqlite3")


def stall_limit(options: Options) -> float:
    """Seconds without a move after which a thread or a process has stalled."""
    return max(LEAST_LIMIT_SECONDS, options.heartbeat_timeout)


class Vitals:
    """limit_seconds: a thread that did not move for so long has stalled, unless it waits for the database."""

    def __init__(self, name: str, pulse: Pulse, heart: Heart, outage: Outage, limit_seconds: float) -> None:
        self._name, self._pulse, self._heart, self._outage = name, pulse, heart, outage
        self._limit = limit_seconds

    def health(self) -> Health:
        stalled = tuple(Complaint(self._name, what) for what in self._stalled())
        unready = tuple(Complaint(self._name, what) for what in self._unready())
        return Health(stalled, stalled + unready, is_stopping=self._pulse.is_draining)

    def _stalled(self) -> Iterator[str]:
        for thread, what in ((self._pulse, "loop"), (self._heart, "heartbeat thread")):
            moved_at = thread.moved_at  # None before its start
            silent = 0.0 if moved_at is None else time.monotonic() - moved_at
            if silent > self._limit and thread.is_alive() and not waits_for_database(thread):
                yield f"The {what} has not moved for {silent:.0f} s."
            if moved_at is not None and not thread.is_alive() and not self._pulse.is_draining:
                yield f"The {what} has ended."
        if not self._pulse.is_draining:
            yield from self._pulse.crew.stalled()

    def _unready(self) -> Iterator[str]:
        if self._pulse.is_draining:
            yield "It is stopping."
        else:
            yield from self._pulse.crew.blocked(self._limit)
        if self._pulse.is_quiet:
            yield "It is quiet: it claims nothing."
        if not self._heart.has_beaten:
            yield "It is not registered yet: no heartbeat has reached the database."
        elif self._outage.is_on or not self._heart.reaches_database:
            yield "The database is away."


def waits_for_database(thread: threading.Thread) -> bool:
    """
    Whether a thread is inside a call of the database's driver.

    Its stack alone can tell: a connect to a server that is gone may take minutes, without any error.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(OF_THE_DATABASE):
            return True
        frame = frame.f_back
    return False


class Reporter(threading.Thread):
    """Tells somebody each second how we are; as long as it does, this process moves at all."""

    def __init__(self, vitals: Vitals, tell: Callable[[Health], None]) -> None:
        super().__init__(name="reporter", daemon=True)
        self._vitals, self._tell = vitals, tell
        self._kicked, self._over = threading.Event(), False

    def kick(self) -> None:
        """Tell it now: it has changed."""
        self._kicked.set()

    def run(self) -> None:
        while not self._over:
            self._tell(self._vitals.health())
            self._kicked.wait(REPORT_SECONDS)
            self._kicked.clear()

    def stop(self) -> None:
        self._over = True
        self._kicked.set()
