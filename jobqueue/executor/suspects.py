"""
Tasks that lost two executors run alone in their process.

So a task that kills executors is found out at its third loss, and its neighbours do not end FAILED for it.
"""

from __future__ import annotations

import time
from enum import Enum, auto

LOOK_SECONDS = 1.0
GIVE_UP_PATIENCES = 10  # so long a process does not wait again that has waited in vain
RUN_SECONDS = 1.0  # for one suspect after the other, before the others have as much


class _Stage(Enum):
    NONE = auto()
    WAITING = auto()  # a suspect is READY: we finish what runs and claim nothing else
    RUNNING = auto()


class Suspects:
    """
    Decides when this process makes room for a suspect.

    patience_seconds: how long to wait for our running tasks to end before we go on without; a long
    task must not idle a whole process for the sake of a suspicious one. After a suspect has
    run alone for as long, the process claims other tasks again. Otherwise long suspects would block the queue.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._stage = _Stage.NONE
        self._since = 0.0  # when waiting, or running, began
        self._run_since: float | None = None  # when the first of a run of suspects was claimed
        self._next_look_at = 0.0
        self._gave_up_until = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._stage is _Stage.WAITING

    @property
    def is_running(self) -> bool:
        return self._stage is _Stage.RUNNING

    def are_worth_a_look(self, *, is_alone: bool) -> bool:
        """Whether to look; who has nothing in hand has nothing to wait for, though it has waited in vain before."""
        now = time.monotonic()
        if self._stage is _Stage.RUNNING and now - self._since > self._patience:
            self._give_up(now)
        is_due = now >= self._next_look_at and (is_alone or now >= self._gave_up_until)
        return self._stage is not _Stage.RUNNING and is_due

    def seen(self, found: bool) -> None:
        """Somebody looked whether suspects wait; another process may have taken the one we wait for."""
        now = time.monotonic()
        self._next_look_at = now + LOOK_SECONDS
        if not found:
            self._stage, self._run_since = _Stage.NONE, None
        elif self._stage is _Stage.NONE:
            self._stage, self._since, self._run_since = _Stage.WAITING, now, None
        elif now - self._since > self._patience:
            self._give_up(now)

    def claimed(self, found: bool) -> None:
        now = time.monotonic()
        if found:
            self._stage, self._since, self._run_since = _Stage.RUNNING, now, self._run_since or now
        else:
            self._rest(now)

    def ended(self) -> None:
        """The suspect, which ran alone, has ended; a crash leaves many, most of them quick and innocent."""
        if self._stage is not _Stage.RUNNING:
            return
        now = time.monotonic()
        if self._run_since is not None and now - self._run_since < RUN_SECONDS:
            self._stage, self._since = _Stage.WAITING, now
        else:
            self._rest(now)

    def _give_up(self, now: float) -> None:
        self._stage, self._run_since = _Stage.NONE, None
        self._gave_up_until = now + GIVE_UP_PATIENCES * self._patience

    def _rest(self, now: float) -> None:
        self._stage, self._run_since = _Stage.NONE, None
        self._next_look_at = now + LOOK_SECONDS
