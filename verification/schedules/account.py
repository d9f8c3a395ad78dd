"""What one schedule owes: its ticks, and what became of each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from verification.schedules.random_schedules import RandomTiming

MISSED_AFTER: Final = timedelta(seconds=30)


@dataclass(slots=True)
class Life:
    """A task, from its first to its last entry in the record. others: tasks of its schedule that lived at its start."""

    id: UUID
    schedule: int | None
    tick: datetime | None
    key: str | None
    born: int
    died: int | None = None
    others: bool = False

    def lives_at(self, entry: int) -> bool:
        return self.born < entry and (self.died is None or self.died > entry)


@dataclass
class Account:
    """
    One schedule. upcoming: its ticks to come. owed: ticks that are due, each with its due time, until the record shows
    what became of it. done: the outcome of each other tick. waiting: the owed tick that waits for a task.
    """

    pk: int
    name: str
    columns: dict[str, Any]
    timing: RandomTiming
    upcoming: deque[datetime] = field(default_factory=deque)
    owed: dict[datetime, datetime] = field(default_factory=dict)
    waiting: datetime | None = None
    done: dict[datetime, str] = field(default_factory=dict)
    last: datetime | None = None
    is_retired: bool = False
    is_paused: bool = False
    resume_at: datetime | None = None
    jitter_part: float = 0.0  # between 0 and 1; fixed by the name
    lives: list[Life] = field(default_factory=list)

    @property
    def delay(self) -> timedelta:
        return timedelta(seconds=self.columns["jitter_seconds"] * self.jitter_part)

    @property
    def next_due(self) -> datetime | None:
        """Return when the first tick that does not wait is due."""
        owed = [due for tick, due in self.owed.items() if tick != self.waiting]
        return min(owed) if owed else self.upcoming[0] + self.delay if self.upcoming else None

    def begin(self, timing: RandomTiming, after: datetime, end: datetime) -> None:
        """Follow a timing from a moment on. It has no tick before one that is accounted for."""
        after = max(moment for moment in (after, self.last, self.waiting) if moment)
        self.timing = timing
        self.upcoming = deque(timing.ticks(after, end))

    def owe(self, until: datetime, *, with_jitter: bool = True) -> None:
        """Take note of the ticks that are due. Without jitter, they are due at their moment."""
        delay = self.delay if with_jitter else timedelta(0)
        while self.upcoming and self.upcoming[0] + delay <= until:
            tick = self.upcoming.popleft()
            self.owed[tick] = tick + self.delay

    def give_back(self, until: datetime, *, with_jitter: bool = True) -> None:
        """Put the ticks that were not due back. The clock may be set back, or the jitter may change."""
        delay = self.delay if with_jitter else timedelta(0)
        while self.owed and (tick := max(self.owed)) != self.waiting and tick + delay > until:
            del self.owed[tick]
            self.upcoming.appendleft(tick)

    def settle(self, tick: datetime, what: str) -> None:
        del self.owed[tick]
        self.done[tick] = what
        self.last = max(tick, self.last or tick)
        if tick == self.waiting:
            self.waiting = None

    def is_paused_for(self, tick: datetime) -> bool:
        return self.is_paused and (self.resume_at is None or tick < self.resume_at)

    def is_late(self, tick: datetime, now: datetime) -> bool:
        """Return whether no executor was there when the tick was due."""
        return self.owed[tick] + MISSED_AFTER < now

    def has_task(self, entry: int) -> bool:
        return any(life.lives_at(entry) for life in self.lives)

    def forget_dead(self) -> None:
        self.lives = [life for life in self.lives if life.died is None]
