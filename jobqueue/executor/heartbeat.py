"""The heartbeat: it shows that this executor lives, and finds claims that are lost or to be cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

import django.db

from jobqueue.engine.base import Engine
from jobqueue.engine.schema import missing_migrations, missing_tables
from jobqueue.exceptions import ClaimLost, TaskCancelled
from jobqueue.executor.hold import Hold
from jobqueue.executor.outage import Line, Outage, Patience
from jobqueue.executor.telemetry.errors import first_line_of
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.failpoints import reach
from jobqueue.printable import printable
from jobqueue.records import ExecutorInfo, OwnedTask

logger = get_logger(__name__)


class Heart(threading.Thread):
    """
    Beats every third of HEARTBEAT_TIMEOUT, on a connection of its own.

    Each beat also tells which of our claims are still ours, and which tasks are to be cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        sign: Callable[[], ExecutorInfo],
        holds: Mapping[UUID, Hold],
        outage: Outage,
        line: Line,
        on_first_beat: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._engine, self._sign, self._holds, self._outage, self._line = engine, sign, holds, outage, line
        self._on_first_beat = on_first_beat
        self._timeout = engine.options.heartbeat_timeout
        self._late_seconds = self._timeout / 2
        self._kicked = threading.Event()
        self._over = False
        self.has_beaten = False
        self.last_good_at = time.monotonic()
        self.sees_strays = False  # whether two beats in a row saw a claim of ours that nobody here knows of
        self._unknown: set[tuple[UUID, int]] = set()
        self._unbroken_since: float | None = None
        self._clock: tuple[datetime, float] | None = None  # the database's and ours at the last look
        self._looking = threading.Lock()
        self.failure: BaseException | None = None
        self.moved_at: float | None = None  # monotonic: when it last began to beat

    @property
    def may_rescue(self) -> bool:
        """
        Whether a full timeout of punctual beats lies behind us: after an outage nobody steals from the living.

        Nor after a standstill of our own, which may have hidden one: a beat is late by half of what lies between two.
        Nor before the next beat where another thread has met the outage first: a backup may have been restored, in
        which all look silent.
        """
        since, now = self._unbroken_since, time.monotonic()
        return (
            since is not None
            and now - self.last_good_at <= self._late_seconds
            and now - since >= self._timeout
            and self.last_good_at > self._outage.last_away_at
        )

    def may_still_rescue(self) -> bool:
        """The same, asked by who has just seen somebody silent: that may have been the clock. From any thread."""
        self._look_at_clock()
        return self.may_rescue

    def _look_at_clock(self) -> None:
        """
        See whether the database's clock was set forward since the last look, so that the living look silent.

        Then punctual beats are counted anew: when they are enough, all have beaten by the clock as it is now.
        """
        now, ours = self._engine.now(), time.monotonic()
        with self._looking:
            seen, seen_at = self._clock or (now, ours)
            self._clock = now, ours
            ahead = (now - seen).total_seconds() - (ours - seen_at)
            if ahead <= self._timeout / 3 or self._unbroken_since is None:
                return
            self._unbroken_since = ours
        logger.warning("clock.jumped ahead_s=%.1f hint=Rescues are suspended for a while.", ahead)

    @property
    def reaches_database(self) -> bool:
        """Whether the last beat was a good one, and is not old."""
        return self._unbroken_since is not None and not self.is_fenced()

    def is_fenced(self) -> bool:
        """Whether the last good beat is so old that others may soon take our tasks."""
        return self.has_beaten and time.monotonic() - self.last_good_at > self._timeout - min(5.0, self._timeout / 6)

    def kick(self) -> None:
        """Beat now, to see a cancel that was just asked for."""
        self._kicked.set()

    def run(self) -> None:
        interval = self._timeout / 3
        patience, said = Patience(longest_seconds=min(5.0, interval)), ""
        try:
            while not self._over:
                self.moved_at = time.monotonic()
                try:
                    if not self.has_beaten and (missing := self._missing()):
                        if missing != said:
                            logger.error("schema.outdated hint=%s", missing)
                        said, wait = missing, patience.next_seconds()
                    else:
                        self.beat()
                        patience.reset()
                        wait = self.moved_at + interval - time.monotonic()
                except django.db.Error as error:
                    self._unbroken_since = None
                    self._outage.begin("heartbeat", error)
                    self._line.drop()
                    wait = patience.next_seconds()
                except MemoryError:  # a body has taken it all, and gives it back when it fails
                    logger.warning("heartbeat.out_of_memory")
                    self._line.drop()
                    wait = patience.next_seconds()
                self._kicked.wait(max(0.0, wait))
                self._kicked.clear()
            self._say_goodbye()
        except BaseException as failure:  # a process without a heart must not go on: the watchdog ends it
            self.failure = failure
            logger.exception("heartbeat.crashed")
        finally:
            self._line.drop()

    def beat(self) -> None:
        """Beat once. Raises django.db.Error when the database is away."""
        began, before = time.monotonic(), dict(self._holds)
        with self._line:
            reach("heartbeat.before")
            held = self._engine.heartbeat(self._sign())
            reach("heartbeat.after")
            self._look_at_clock()
        with self._looking:
            if self._unbroken_since is None or began - self.last_good_at > self._late_seconds:
                self._unbroken_since = began
            self.last_good_at = began
        self._outage.end("heartbeat")
        if not self.has_beaten:
            self.has_beaten = True
            self._on_first_beat()
        self._look_at(before, {seen.id: seen for seen in held})
        self._look_for_strays(held)

    def _missing(self) -> str:
        """
        Say what has to be done to the database before the first beat, "" for nothing.

        On tables of older code a claim may work and its commit not: bodies would run again and again.
        """
        database = self._engine.database
        with self._line:
            tables, migrations = missing_tables(database), missing_migrations(database)
        where = "" if database == django.db.DEFAULT_DB_ALIAS else f" --database {database}"
        if tables:
            what = f"table {tables[0]} is" if len(tables) == 1 else f"tables {', '.join(tables)} are"
            return f"The {what} missing in the database {database!r}: run `manage.py migrate{where}`."
        if migrations:
            what = (
                f"migration {migrations[0]} is" if len(migrations) == 1 else f"migrations {', '.join(migrations)} are"
            )
            return f"The {what} not applied to the database {database!r}: run `manage.py migrate jobqueue{where}`."
        return ""

    def _say_goodbye(self) -> None:
        """Mark this executor as stopped; what it may still hold is left to a rescue."""
        try:
            if self.has_beaten:
                with self._line:
                    self._engine.heartbeat(replace(self._sign(), state="STOPPED"))
        except django.db.Error as error:
            logger.debug("executor.deregister_failed error=%s", first_line_of(error))

    def _look_at(self, before: Mapping[UUID, Hold], held: Mapping[UUID, OwnedTask]) -> None:
        for pk, hold in before.items():
            match held.get(pk):
                case OwnedTask(claim_number=number, is_cancel_requested=requested) if (
                    number == hold.claimed.claim_number
                ):
                    if requested and hold.reason is None:
                        hold.interrupt(TaskCancelled)
                case _ if hold.is_armed and hold.reason is None and hold.interrupt(ClaimLost):
                    # A body that has just ended and was committed is missing too, but is no longer armed.
                    logger.warning(
                        "task.claim_lost task=%s id=%s",
                        printable(hold.claimed.task_type),
                        pk,
                    )

    def _look_for_strays(self, held: Sequence[OwnedTask]) -> None:
        """What was claimed a moment ago may not be known yet; what two beats saw is a claim whose answer was lost."""
        unknown = {(seen.id, seen.claim_number) for seen in held if seen.id not in self._holds}
        self.sees_strays = not unknown.isdisjoint(self._unknown)
        self._unknown = unknown

    def stop(self) -> None:
        self._over = True
        self._kicked.set()
