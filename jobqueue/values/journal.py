"""The journal of a workflow: its entries, and what a suspended workflow waits for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from msgspec import Struct


class EntryKind(StrEnum):
    """The call of the context that an entry records."""

    STEP = "STEP"
    SLEEP = "SLEEP"
    RECEIVE = "RECEIVE"
    SPAWN = "SPAWN"
    WAIT = "WAIT"  # for the first of several children
    SEND = "SEND"
    VALUE = "VALUE"  # now(), uuid(), random()
    PATCH = "PATCH"
    COMPENSATION = "COMPENSATION"
    SHIELD = "SHIELD"  # a part of the body that a cancel does not end
    CANCEL = "CANCEL"  # the call at which the workflow learned that it is to be cancelled
    MEMBER = "MEMBER"  # a failed member of a batch


class EntryStatus(StrEnum):
    """The state of an entry."""

    WAITING = "WAITING"
    RETRYING = "RETRYING"  # a step or a compensation that runs again
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"  # a compensation that was not needed; a wait that people ended


OPEN = (EntryStatus.WAITING, EntryStatus.RETRYING)


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    One recorded call of a workflow. JSON columns are JSON text.

    An entry that is written replaces the one of its name, and keeps its place in the order.
    """

    name: str  # "charge_card", repeated "charge_card#2"; unique in the journal
    kind: EntryKind  # of the call
    status: EntryStatus  # of the call
    arguments: str | None = None  # JSON text for people; None: it has none
    digest: str | None = None  # of the arguments, 16 characters; None: it has none
    value: str | None = None  # JSON text of the result, or of the message; None: it has none
    error: str | None = None  # JSON text, as an entry of Task.errors; None: it has not failed
    attempts: int = 0  # of a step, that have ended
    child_id: UUID | None = None  # of SPAWN and MEMBER the child, of RECEIVE the sender; None: no task
    started_at: datetime | None = None  # None: when it is written, minus run_seconds
    finished_at: datetime | None = None  # None: when it is written, if it is not open
    due_at: datetime | None = None  # when a wait or the backoff of a step ends; None: due_seconds
    run_seconds: float = 0.0  # of a step that has ended now; it is not read
    due_seconds: float | None = None  # from the write to due_at; it is not read; None: no such time


class Journal(Struct, frozen=True):
    """The recorded calls of a workflow."""

    entries: Sequence[Entry] = ()  # in the order of recording
    is_cancel_requested: bool = False  # of its task


class Restart(Struct, frozen=True):
    """The arguments with which a workflow begins a new journal, as JSON texts."""

    args: str
    kwargs: str


class Waiting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The condition that ends the wait of a suspended workflow."""

    name: str  # of the entry, or of the call
    kind: str  # "sleep", "receive", "children" or "retry"
    types: list[str] = []  # the names of the messages that end it; empty: any message
    children: list[str] = []  # names of the entries of the children
    count: int = 0  # how many of these children must have ended
    until: datetime | None = None  # when it ends at the latest; None: never


class WorkflowState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a workflow beside its journal, as `Task.inner_state` stores it."""

    code: str = ""  # the version of the code that ran last
    waiting: Waiting | None = None  # None: it does not wait
    failed_child: UUID | None = (
        None  # the child because of which the workflow has failed; None: another reason, or none
    )
    compensating: bool = False  # it has begun to undo its steps
    generation: int = 0  # how often it has begun a new journal
