"""A thread that waits for nobody: timeouts, hung connections, lost hearts, stuck bodies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from jobqueue.exceptions import ClaimLost, ShuttingDown, TaskTimeout
from jobqueue.executor.heartbeat import Heart
from jobqueue.executor.hold import Hold
from jobqueue.executor.outage import Line
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

LOOK_SECONDS = 0.5  # between looks when no deadline is nearer
TELL_AGAIN_SECONDS = 10.0  # a body that swallowed the interruption hears it again


class Watchdog(threading.Thread):
    """Looks at everything that must not last too long. It never talks to the database."""

    def __init__(
        self,
        holds: Mapping[UUID, Hold],
        heart: Heart,
        lines: Iterable[Line],
        grace_seconds: float,
        on_stuck: Callable[[Hold], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._holds, self._heart, self._lines = holds, heart, list(lines)
        self._grace = grace_seconds
        self._on_stuck, self._on_failure = on_stuck, on_failure
        self._kicked = threading.Event()
        self._over = False
        self._was_fenced = False

    def kick(self) -> None:
        """A task with a timeout has started."""
        self._kicked.set()

    def run(self) -> None:
        try:
            while not self._over:
                try:
                    wait = self._look()
                except MemoryError:  # a body has taken it all; the next look finds what this one did not
                    wait = LOOK_SECONDS
                self._kicked.wait(wait)
                self._kicked.clear()
        except BaseException as failure:  # without it timeouts mean nothing, and a hung connection hangs for ever
            logger.exception("watchdog.crashed")
            self._on_failure(failure)

    def _look(self) -> float:
        """Look once; returns the seconds until the next look."""
        now = time.monotonic()
        wait = LOOK_SECONDS
        for hold in list(self._holds.values()):
            if not hold.is_armed:
                continue
            if hold.reason is None and hold.deadline_at is not None:
                if hold.deadline_at <= now:
                    hold.interrupt(TaskTimeout)
                else:
                    wait = min(wait, hold.deadline_at - now)
            elif hold.reason is not None:
                self._tell_again(hold, now)
        self._look_at_heart()
        for line in self._lines:
            line.cut_if_hung()
        return wait

    def _tell_again(self, hold: Hold, now: float) -> None:
        # Who is only told that we are stopping is handed back when its time is over, deaf or not.
        is_to_blame = hold.reason is not ShuttingDown
        if is_to_blame and hold.told_first_at is not None and now - hold.told_first_at > self._grace:
            self._on_stuck(hold)
        elif hold.told_at is not None and now - hold.told_at > TELL_AGAIN_SECONDS and hold.reason is not None:
            hold.interrupt(hold.reason)

    def _look_at_heart(self) -> None:
        if self._heart.failure is not None:
            self._on_failure(self._heart.failure)
        fenced = self._heart.is_fenced()
        if fenced and not self._was_fenced:
            logger.error(
                "executor.fenced silent_s=%.1f hint=No heartbeat reached the database. Running tasks are interrupted.",
                time.monotonic() - self._heart.last_good_at,
            )
            for hold in list(self._holds.values()):
                if hold.is_armed and hold.reason is None:
                    hold.interrupt(ClaimLost)
        self._was_fenced = fenced

    def stop(self) -> None:
        self._over = True
        self._kicked.set()
