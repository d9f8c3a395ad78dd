"""
The actions that a poll of an actor returns. They are values, which a test can compare without a database.

A poll returns any number of effects (Spawn, Send, Yield) and at most one disposition (Sleep, Suspend, Done). Without
a disposition the actor is polled again at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobqueue.values.ids import new_id


@dataclass(frozen=True, slots=True, init=False)
class Spawn:
    """
    Start a child task, an actor or a function. When it ends, the parent gets one message.

    The poll fails with DuplicateKey if a live task has the child's key.

    Build a new Spawn for each child. `using()` of the target sets options: Spawn(make_thumbnail.using(priority=5),
    photo.pk).
    """

    target: Any  # the actor or function
    args: tuple[Any, ...]  # of the child
    kwargs: Mapping[str, Any]  # of the child
    id: UUID = field(compare=False)  # of the child, which the state may store

    def __init__(self, target: Any, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)
        object.__setattr__(self, "id", new_id())


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a task by its id, its live key, or its Spawn. The poll fails if the task has ended."""

    to: UUID | str | Spawn
    body: Any = None
    dedupe_key: str | None = None


@dataclass(frozen=True, slots=True)
class Yield:
    """Send a message to the parent. It is dropped if the parent has ended. Without a parent, the poll fails."""

    body: Any = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Be polled again after a timedelta or at a datetime, or when a message comes."""

    until: timedelta | datetime


@dataclass(frozen=True, slots=True)
class Suspend:
    """
    Be polled again when a message comes, or after `timeout`.

    If several polls in a row consume no message, the timeout counts from the first of them. The poll after the
    timeout has `timed_out` set, even if messages are unread.
    """

    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """End SUCCESSFUL. Live children continue, unless cancel_children is true."""

    result: Any = None
    cancel_children: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Be polled again after some seconds. Messages do not end it, and collect. For tasks of this package."""

    seconds: float


@dataclass(frozen=True, slots=True)
class EndCancelled:
    """End CANCELLED. For tasks of this package."""


Effect = Spawn | Send | Yield
Disposition = Sleep | Suspend | Done | Pause | EndCancelled
Action = Effect | Disposition


class Kind(StrEnum):
    """The kind of a message: sent by send(), or the end of a child."""

    MESSAGE = "MESSAGE"
    CHILD_SUCCESSFUL = "CHILD_SUCCESSFUL"  # body: the child's result
    CHILD_FAILED = "CHILD_FAILED"  # body: its last error, a dict with exception_class_path, message, traceback
    CHILD_CANCELLED = "CHILD_CANCELLED"
    CHILD_REQUEUED = "CHILD_REQUEUED"  # sent to batches only: a member that had ended runs again


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One unread message."""

    id: int  # grows in the order of sending
    kind: Kind  # from a task or a caller, or that a child ended
    body: Any  # of the actor's `Message` type for kind MESSAGE
    sender: UUID | None  # the task that sent it; None: no task
    sent_at: datetime  # by the database's clock
