"""
Isolation: a task that lost two executors runs alone in its process.

A task that kills executors then reaches MAX_EXECUTOR_LOSSES alone. Other tasks do not end FAILED because of it.
"""

from __future__ import annotations

import time

CHECK_SECONDS = 1.0  # between two checks for tasks that have to run alone
GIVE_UP_TIMEOUTS = 10  # after waiting too long, the process does not wait again for so many timeouts
SERIES_SECONDS = 1.0  # run such tasks one after the other for so long, then let others run


class Isolation:
    """
    Decides when this process stops claiming so that it can run a task alone. Belongs to the loop's thread.

    is_waiting: such a task is READY; finish the running tasks and claim no others. is_running: such a task runs, and no
    other. timeout_seconds: how long to wait for the running tasks to end: a long task must not idle a whole process.
    After an isolated task has run for as long, the process claims other tasks again, so that it does not block the
    queue.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self.is_waiting = self.is_running = False
        self._since = 0.0  # when it began to wait or to run
        self._series_ends_at = 0.0
        self._next_check_at = self._gave_up_until = 0.0

    @property
    def is_active(self) -> bool:
        """Whether other tasks have to wait."""
        return self.is_waiting or self.is_running

    def should_check(self, *, is_idle: bool) -> bool:
        """Return whether to look for READY tasks that have to run alone. An idle process has nothing to wait for."""
        now = time.monotonic()
        if self.is_running:
            self._give_up_after_timeout(now)
            return False
        return now >= self._next_check_at and (is_idle or now >= self._gave_up_until)

    def checked(self, has_isolated: bool) -> None:
        """Record a look. Another process may have claimed the task since the last one."""
        now = time.monotonic()
        self._next_check_at = now + CHECK_SECONDS
        if has_isolated and self.is_waiting:
            self._give_up_after_timeout(now)
        else:
            self.is_waiting, self._since = has_isolated, now

    def claimed(self, has_claimed: bool) -> None:
        """Record the answer to a claim for one isolated task."""
        now = time.monotonic()
        if not has_claimed:
            self._rest(now)
            return
        if now >= self._series_ends_at:
            self._series_ends_at = now + SERIES_SECONDS
        self.is_waiting, self.is_running, self._since = False, True, now

    def ended(self) -> None:
        """Record the end of a task. A crash leaves many tasks to isolate, most of them quick and innocent."""
        if not self.is_running:
            return
        now = time.monotonic()
        if now < self._series_ends_at:
            self.is_waiting, self.is_running, self._since = True, False, now
        else:
            self._rest(now)

    def _give_up_after_timeout(self, now: float) -> None:
        if now - self._since > self._timeout:
            self.is_waiting = self.is_running = False
            self._gave_up_until = now + GIVE_UP_TIMEOUTS * self._timeout

    def _rest(self, now: float) -> None:
        self.is_waiting = self.is_running = False
        self._next_check_at = now + CHECK_SECONDS
