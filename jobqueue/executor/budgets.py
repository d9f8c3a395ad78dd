"""Budgets of the loop's calls: how much each may do at once, and when it is repeated after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import django.db

from jobqueue.engine import UNREACHABLE, sqlstate_of
from jobqueue.executor.database.connection import GuardedConnection
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

SMALLER = 4  # by which a size is divided after a failure. After each success it is doubled
FIRST_WAIT_SECONDS = 0.5  # after the first failure in a row; doubled after each
LONGEST_WAIT_SECONDS = 60.0
FORGET_SECONDS = 600.0  # after which a call that was not made again is forgotten: its task may have ended
LOG_SECONDS = 60.0  # between two lines about the same call

T = TypeVar("T")


@dataclass(slots=True)
class Budget:
    """The remaining budget of a failed call."""

    size: int  # how much it may do
    next_at: float = 0.0  # when it may try again, monotonic
    failed_size: int = 0  # with which it has failed last
    failures: int = 0  # in a row
    logged_at: float = float("-inf")  # when its failure was logged last, monotonic


class Budgets:
    """
    Makes the calls of the loop that are not commits: each with its own time, so that none stops the others.

    A call that takes too long, or that the database refuses, is made again later and for a quarter. After each success
    it may do twice as much, until it has its full size. Belongs to the loop's thread.
    """

    def __init__(self, connection: GuardedConnection) -> None:
        self._connection = connection
        self._budgets: dict[str, Budget] = {}  # of the calls that have failed

    def call(self, verb: str, function: Callable[[int], T], default: T, size: int = 1) -> T:
        """
        Call a function with the size that it may have; return the default if it fails or has to wait.

        Raises django.db.Error if the database is unreachable.
        """
        budget = self._budgets.get(verb)
        if budget is not None and time.monotonic() < budget.next_at:
            return default
        allowed = size if budget is None else min(size, budget.size)
        self._connection.restart()
        began_at = time.monotonic()
        try:
            answer = function(allowed)
        except django.db.Error as error:
            if not self._connection.has_timed_out(error) and not self._is_of_this_call(error):
                raise
            self._fail(verb, allowed, error, time.monotonic() - began_at)
            self._connection.restart()
            return default
        if budget is not None:
            self._succeed(verb, budget, size)
        return answer

    def has_failed(self, verb: str) -> bool:
        """Return whether a call has failed, and has not had its full size since."""
        return verb in self._budgets

    def is_resting(self, verb: str) -> bool:
        """Return whether a call has failed, and it is too early to make it again."""
        budget = self._budgets.get(verb)
        return budget is not None and time.monotonic() < budget.next_at

    def is_smallest(self, verb: str) -> bool:
        """Return whether a call has failed although it was as small as possible."""
        budget = self._budgets.get(verb)
        return budget is not None and budget.failures > 0 and budget.failed_size == 1

    def _is_of_this_call(self, error: Exception) -> bool:
        """Return whether the server has refused this call alone: another one may succeed on the same connection."""
        state = sqlstate_of(error)
        return bool(state) and not state.startswith(UNREACHABLE) and self._connection.is_open

    def _fail(self, verb: str, size: int, error: Exception, seconds: float) -> None:
        now = time.monotonic()
        self._budgets = {name: kept for name, kept in self._budgets.items() if now - kept.next_at < FORGET_SECONDS}
        budget = self._budgets.setdefault(verb, Budget(size))
        budget.size, budget.failed_size, budget.failures = max(1, size // SMALLER), size, budget.failures + 1
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(budget.failures - 1, 20))
        budget.next_at = now + max(wait, min(seconds, LONGEST_WAIT_SECONDS))  # others have half of the time at least
        if now - budget.logged_at >= LOG_SECONDS:
            budget.logged_at = now
            logger.warning(
                "verb.deferred verb=%s size=%d after_s=%.1f again_in_s=%.1f error=%s",
                verb,
                size,
                seconds,
                budget.next_at - now,
                format_first_line(error),
            )

    def _succeed(self, verb: str, budget: Budget, size: int) -> None:
        budget.failures = 0
        budget.size *= 2
        if budget.size > size:
            del self._budgets[verb]
