"""
What a poll of an actor returns: pure values, compared with == in a test without a database.

Any number of effects (Spawn, Send, Yield), then at most one disposition (Sleep, Suspend, Done); without
one the actor is polled again at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobqueue.serialization.ids import new_id


@dataclass(frozen=True, slots=True, init=False)
class Spawn:
    """
    Start a child task: an actor, or a function task; its end arrives in our inbox as one message.

    The poll fails with DuplicateKey when a live task holds the child's key.

    `id` is there from the moment this is built, so that the state can remember the child; hence each is one
    child, to be built in the poll that returns it, not kept in a module and spawned again. `using()` of the
    target sets options, as in Spawn(make_thumbnail.using(priority=5), photo.pk).
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    id: UUID = field(compare=False)

    def __init__(self, target: Any, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)
        object.__setattr__(self, "id", new_id())


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a task: by its id, its live key, or its Spawn. The poll fails when the task has ended."""

    to: UUID | str | Spawn
    body: Any = None
    dedupe_key: str | None = None


@dataclass(frozen=True, slots=True)
class Yield:
    """Send a message to the parent, dropped when that has ended; the poll fails when there never was one."""

    body: Any = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Be polled again after a time or at a moment; a message ends it early."""

    until: timedelta | datetime


@dataclass(frozen=True, slots=True)
class Suspend:
    """
    Be polled again when a message comes, or after `timeout`.

    Of polls in a row that take none of their mail, the first one's timeout stands; the poll that sees it end is
    told so by `timed_out`, whatever mail it still leaves.
    """

    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """End SUCCESSFUL. Living children live on, unless cancel_children."""

    result: Any = None
    cancel_children: bool = False


Effect = Spawn | Send | Yield
Disposition = Sleep | Suspend | Done
Action = Effect | Disposition


class Kind(StrEnum):
    """What a message in an inbox is."""

    MESSAGE = "MESSAGE"
    CHILD_SUCCESSFUL = "CHILD_SUCCESSFUL"  # body: the child's result
    CHILD_FAILED = "CHILD_FAILED"  # body: its last error, a dict with exception_class_path, message, traceback
    CHILD_CANCELLED = "CHILD_CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One unread message. `body` is decoded as the actor's `Message` type says, for kind MESSAGE."""

    id: int
    kind: Kind
    body: Any
    sender: UUID | None
    sent_at: datetime
