"""The claims in this process's hands, and how a running body is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

from jobqueue.exceptions import Interrupted
from jobqueue.outcome import Claimed

Stopper = Callable[[type[Interrupted]], None]


class Hold:
    """
    One claimed task, from the claim to the commit of its outcome.

    Between arm() and disarm() its body runs and may be interrupted; the lock keeps an interruption
    from arriving once the body is over and its commit begins.
    """

    __slots__ = (
        "_lock",
        "_stopper",
        "claimed",
        "claimed_at",
        "deadline_at",
        "reason",
        "started_at",
        "told_at",
        "told_first_at",
    )

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.claimed_at = time.monotonic()
        self.started_at: float | None = None
        self.deadline_at: float | None = None  # monotonic; when its timeout is over
        self.told_first_at: float | None = None  # monotonic; when its body was first told to stop, and last
        self.told_at: float | None = None
        self.reason: type[Interrupted] | None = None
        self._stopper: Stopper | None = None
        self._lock = threading.Lock()

    @property
    def id(self) -> UUID:
        return self.claimed.id

    @property
    def is_armed(self) -> bool:
        """Whether its body runs now."""
        return self._stopper is not None

    def start(self, timeout_seconds: float | None) -> None:
        self.started_at = time.monotonic()
        if timeout_seconds is not None:
            self.deadline_at = self.started_at + timeout_seconds

    def arm(self, stopper: Stopper) -> None:
        """From here on the body may be interrupted; it is at once if that was asked for before."""
        with self._lock:
            self._stopper = stopper
            if self.reason is not None:
                stopper(self.reason)

    def disarm(self, clear: Callable[[], None] | None = None) -> None:
        """The body is over. `clear` takes back an interruption that has not arrived yet."""
        with self._lock:
            self._stopper = None
            if clear is not None:
                clear()

    def interrupt(self, reason: type[Interrupted]) -> bool:
        """Tell the body to stop; the first reason stands. Returns whether a body was there to be told."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
            self.told_at = time.monotonic()
            self.told_first_at = self.told_first_at or self.told_at
            if self._stopper is None:
                return False
            self._stopper(self.reason)
            return True

    def is_told_to_stop(self) -> bool:
        return self.reason is not None
