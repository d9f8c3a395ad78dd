"""The enumerations that columns hold: the state of a task, its pool, the kind of a limit, a command."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The state of a task."""

    READY = "READY"
    BLOCKED = "BLOCKED"
    SCHEDULED = "SCHEDULED"
    AWAITING_CODE = "AWAITING_CODE"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


LIVE = (
    Status.READY,
    Status.BLOCKED,
    Status.SCHEDULED,
    Status.AWAITING_CODE,
    Status.RUNNING,
    Status.SUSPENDED,
)
WAITING = (Status.SCHEDULED, Status.SUSPENDED)  # for a time, or for a message
FINAL = (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED)


class PoolName(StrEnum):
    """A pool of an executor: worker threads, or the event loop (`async def`)."""

    THREADS = "threads"
    ASYNC = "async"

    @classmethod
    def pool_of_row(cls, text: str) -> PoolName:
        """Return the pool of a row. A pool that only newer code knows counts as worker threads."""
        return cls(text) if text in {*cls} else cls.THREADS


class LimitKind(StrEnum):
    """The kind of limit that a BLOCKED task waits for."""

    CONCURRENCY = "concurrency"
    RATE = "rate"


class Command(StrEnum):
    """A request to an executor: claim no more tasks, claim again, or stop gracefully."""

    PAUSE = "PAUSE"
    RESUME = "RESUME"
    STOP = "STOP"
