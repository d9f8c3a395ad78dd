"""
Isolation: a task that lost two executors runs alone in its process.

A task that kills executors then reaches MAX_EXECUTOR_LOSSES alone. Other tasks do not end FAILED because of it.
"""

from __future__ import annotations

import time
from enum import Enum, auto

CHECK_SECONDS = 1.0  # between two looks for tasks that have to run alone
GIVE_UP_TIMEOUTS = 10  # after waiting too long, the process does not wait again for so many timeouts
SERIES_SECONDS = 1.0  # run such tasks one after the other for so long, then let others run


class _Stage(Enum):
    NONE = auto()
    WAITING = auto()  # such a task is READY: finish the running tasks and claim no others
    RUNNING = auto()  # such a task runs, and no other


class Isolation:
    """
    Decides when this process stops claiming so that it can run a task alone. Belongs to the loop's thread.

    timeout_seconds: how long to wait for the running tasks to end: a long task must not idle a whole process. After an
    isolated task has run for as long, the process claims other tasks again, so that it does not block the queue.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._stage = _Stage.NONE
        self._stage_began_at = 0.0
        self._series_began_at: float | None = None  # when the first task of a series was claimed
        self._next_check_at = 0.0
        self._gave_up_until = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._stage is _Stage.WAITING

    @property
    def is_active(self) -> bool:
        """Whether other tasks have to wait."""
        return self._stage is not _Stage.NONE

    def should_check(self, *, is_idle: bool) -> bool:
        """Whether to look for READY tasks that have to run alone. An idle process has nothing to wait for."""
        now = time.monotonic()
        if self._stage is _Stage.RUNNING:
            if now - self._stage_began_at > self._timeout:
                self._give_up(now)
            return False
        return now >= self._next_check_at and (is_idle or now >= self._gave_up_until)

    def checked(self, found: bool) -> None:
        """Record a look. Another process may have claimed the task since the last one."""
        now = time.monotonic()
        self._next_check_at = now + CHECK_SECONDS
        if not found:
            self._enter(_Stage.NONE, now)
        elif self._stage is _Stage.NONE:
            self._enter(_Stage.WAITING, now)
        elif now - self._stage_began_at > self._timeout:
            self._give_up(now)

    def claimed(self, found: bool) -> None:
        """Record the answer to a claim for one isolated task."""
        now = time.monotonic()
        if found:
            self._stage, self._stage_began_at = _Stage.RUNNING, now
            self._series_began_at = self._series_began_at or now
        else:
            self._rest(now)

    def ended(self) -> None:
        """Record the end of a task. A crash leaves many tasks to isolate, most of them quick and innocent."""
        if self._stage is not _Stage.RUNNING:
            return
        now = time.monotonic()
        if self._series_began_at is not None and now - self._series_began_at < SERIES_SECONDS:
            self._stage, self._stage_began_at = _Stage.WAITING, now
        else:
            self._rest(now)

    def _enter(self, stage: _Stage, now: float) -> None:
        self._stage, self._stage_began_at, self._series_began_at = stage, now, None

    def _give_up(self, now: float) -> None:
        self._enter(_Stage.NONE, now)
        self._gave_up_until = now + GIVE_UP_TIMEOUTS * self._timeout

    def _rest(self, now: float) -> None:
        self._enter(_Stage.NONE, now)
        self._next_check_at = now + CHECK_SECONDS
