"""One run of a workflow's body on its journal: what is recorded, what is to be written, and how the run ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn, Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from jobqueue.conf.options import Options
from jobqueue.declarations.actions import Spawn
from jobqueue.declarations.step import DeclaredStep, running_step
from jobqueue.exceptions import CompensationFailed, GiveUp, JournalTooLong, NonDeterminism, WorkflowCancelled
from jobqueue.values.journal import OPEN, Entry, EntryKind, EntryStatus, Waiting
from jobqueue.values.records import NO_EFFECTS, Effects, NewMessage, NewTask, StoredMessage

CHOICES = (EntryKind.VALUE, EntryKind.RECEIVE, EntryKind.WAIT)
BLOCKS = (EntryKind.COMPENSATION, EntryKind.SHIELD)
UNCANCELLED = (*BLOCKS, EntryKind.PATCH)  # calls that raise no cancel: a compensation may follow
MAX_ENTRIES = 10_000  # of a journal, without its children
MAX_CHILDREN = 20_000
SHOWN_CHARACTERS = 2_000  # of the arguments that the journal keeps for people


class Suspended(BaseException):
    """
    Ends a run of the body, which runs again from its top.

    waiting: what for; None: it has failed with `error`, or begins a new journal with the arguments in `restart`.
    """

    def __init__(self, waiting: Waiting | None = None, *, error: BaseException | None = None) -> None:
        super().__init__()
        self.waiting, self.error = waiting, error
        self.restart: tuple[tuple[Any, ...], dict[str, Any]] | None = None


class RunRecorder(Protocol):
    """The program around a run, as the run sees it."""

    task_id: UUID
    key: str | None  # the unique key
    attempt: int  # of this run, the first is 1
    generation: int  # how often the workflow has begun a new journal
    passed: timedelta  # how much time a test has let pass, which stored times do not show
    options: Options  # of the backend, for steps without options of their own

    @property
    def is_cancelled(self) -> bool: ...
    def now(self) -> datetime: ...
    def refuse_transaction(self, call: str) -> None: ...
    def record(self, entries: Sequence[Entry], effects: Effects) -> bool: ...
    def transaction(self) -> AbstractContextManager[Any]: ...
    def call(self, step: DeclaredStep[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...
    def encode(self, value: Any) -> str: ...
    def row_of_child(self, spawn: Spawn) -> NewTask: ...
    def message_to(self, receiver: UUID | str, body: Any) -> NewMessage: ...
    def report(self, done: float, total: float | None, note: str) -> None: ...
    def describe(self, error: BaseException, attempt: int) -> str: ...


class Arguments(NamedTuple):
    """The arguments of a call, as the journal keeps them."""

    text: str | None = None  # JSON for people; None: too long, or not JSON
    digest: str | None = None  # None: they are not JSON, so that later runs cannot be compared


NO_ARGUMENTS = Arguments()
encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(slots=True)
class Unwritten:
    """Entries and effects that are written with the next step, or by the commit of the run."""

    entries: dict[str, Entry] = field(default_factory=dict)  # by name
    consumed: list[int] = field(default_factory=list)  # ids of messages
    spawn: list[NewTask] = field(default_factory=list)  # children
    send: list[NewMessage] = field(default_factory=list)  # messages

    def effects(self, finishes_itself: bool) -> Effects:
        if not (self.consumed or self.spawn or self.send):
            return NO_EFFECTS
        return Effects(consumed=self.consumed, spawn=self.spawn, send=self.send, finishes_itself=finishes_itself)


class Replay:
    """
    The journal of a run. entries: recorded before it. inbox: unread messages. unwritten: what precedes the run.

    It has more than 15 attributes because a run has no other state.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        entries: Sequence[Entry] = (),
        inbox: Sequence[StoredMessage] = (),
        unwritten: Unwritten | None = None,
    ) -> None:
        self.recorder = recorder
        self.entries = {entry.name: entry for entry in entries}
        self.ahead = set(self.entries)  # names of entries that this run has not reached
        self.inbox = list(inbox)
        self.unwritten = unwritten or Unwritten()
        self.closed: Suspended | None = None  # why this run is over
        self.error: Exception | None = None  # of the body, which has ended this run
        self.sender: UUID | None = None  # of the message that was received last
        self.blocks: list[str] = []  # compensations around the current call, by name
        self.shields: list[str] = []  # around the current call, by name
        self.protected = 0  # compensations that run, and shields, around the current call
        self.defers_cancel = False  # it waits, although it is to be cancelled
        self.has_unwound = any(map(is_begun_compensation, entries))  # a compensation has begun
        self._counts: Counter[str] = Counter()  # calls of this run
        self._children = sum(entry.kind is EntryKind.SPAWN for entry in entries)
        self._is_cancelled = False  # this run has raised WorkflowCancelled

    # --- calls and their entries

    def enter(self, base: str) -> str:
        """Return the name of a call. Raises Suspended if this run is over."""
        self.raise_if_closed()
        if running_step.get(None) is not None:
            raise RuntimeError(f"Call {base}() of the context in the workflow, not in a step, which may not run again.")
        self.recorder.refuse_transaction(base)
        self._counts[base] += 1
        count = self._counts[base]
        name = base if count == 1 else f"{base}#{count}"
        self.ahead.discard(name)
        return name

    def find(self, name: str, kind: EntryKind, arguments: Arguments | None = None) -> Entry | None:
        """
        Return the entry of a call; None: it is new.

        Raises WorkflowCancelled for a call that has raised it before. Ends the run if the entry does not fit the call.
        """
        entry = self.entries.get(name)
        if entry is not None and entry.status is EntryStatus.CANCELLED and entry.kind is not EntryKind.SPAWN:
            if self.recorder.is_cancelled or self.has_unwound:
                self._is_cancelled = True
                raise WorkflowCancelled
            entry = None  # the workflow was requeued
        if entry is None or entry.status in OPEN:
            self._reopen_blocks()
        if entry is None:
            self.raise_if_unwinding()
            # compensate() raises within its block: a cancel that came after the step before it is not to skip it.
            if kind not in UNCANCELLED:
                self.raise_if_cancelled(name)
            self._check_limit(kind)
            return None
        problem = None
        if entry.kind is not kind:
            problem = f"{name!r} was recorded as {entry.kind}, and is {kind} now"
        elif arguments and entry.digest and arguments.digest and entry.digest != arguments.digest:
            problem = f"{name!r} was recorded with {entry.arguments}, and is called with {arguments.text} now"
        if problem:
            raise self.close(
                NonDeterminism(
                    f"The journal does not fit the code: {problem}. If the call has another meaning now, give it "
                    "another name with step.using(name=...), or keep the old call where context.patched() is False. "
                    "Then requeue the workflow: it goes on."
                )
            )
        return entry

    def _reopen_blocks(self) -> None:
        """Open blocks again that have a new call: people have rewound the workflow, or its code has changed."""
        for entry in [self.entries[name] for name in (*self.blocks, *self.shields)]:
            if entry.status not in OPEN and not is_begun_compensation(entry):
                self.write(replace(entry, status=EntryStatus.WAITING, finished_at=None))

    def _check_limit(self, kind: EntryKind) -> None:
        if kind is EntryKind.SPAWN:
            number, limit, what = self._children, MAX_CHILDREN, "children"
            self._children += 1
        else:
            number, limit, what = len(self.entries) - self._children, MAX_ENTRIES, "entries"
        if number >= limit:
            raise self.close(
                JournalTooLong(
                    f"The journal has {limit:,} {what}, and cannot have more. Begin a new one in time with "
                    "context.continue_as_new(), or give parts of the work to children."
                )
            )

    def wait(self, name: str, kind: EntryKind, arguments: Arguments = NO_ARGUMENTS, **columns: Any) -> Entry:
        """Record the begin of something that ends later."""
        return self.write(Entry(name=name, kind=kind, status=EntryStatus.WAITING, **arguments_of(arguments), **columns))

    def end_or_suspend(self, entry: Entry, waiting: Waiting, ending: EntryStatus = EntryStatus.SUCCESSFUL) -> Entry:
        """End a wait whose time has come, or suspend."""
        if entry.due_at is None or entry.due_at > self.recorder.now():
            self.suspend(replace(waiting, until=entry.due_at))
        return self.end(entry, ending)

    def end(self, entry: Entry, status: EntryStatus) -> Entry:
        return self.write(replace(entry, status=status, finished_at=self.recorder.now()))

    def write(self, entry: Entry) -> Entry:
        """Keep an entry until it is written with the next step, or by the commit of the run."""
        if entry.started_at is None:
            entry = replace(entry, started_at=self.recorder.now())
        self.entries[entry.name] = self.unwritten.entries[entry.name] = entry
        return entry

    def record(self, *refusals: type[Exception]) -> None:
        """Write what is unwritten, now. Raises the refusals. Any other error ends the run."""
        if not self.unwritten.entries:
            return
        try:
            effects = self.unwritten.effects(finishes_itself=self.protected > 0)
            is_to_be_cancelled = self.recorder.record(list(self.unwritten.entries.values()), effects)
        except refusals:
            raise
        except BaseException as error:
            raise self.close(error) from error
        if is_to_be_cancelled and not self.protected:
            self.forget_children()
        self.unwritten = Unwritten()

    def forget_children(self) -> None:
        """Forget the children of this run, which a cancelled task does not spawn. A requeue lets it spawn others."""
        ids = {row.id for row in self.unwritten.spawn}
        for name in [entry.name for entry in self.unwritten.entries.values() if entry.child_id in ids]:
            del self.entries[name], self.unwritten.entries[name]
        self.unwritten.spawn = []

    def child(self, name: str) -> Entry:
        """Return the entry of a child. Raises WorkflowCancelled if a cancel came before its spawn was recorded."""
        if name not in self.entries:
            self._is_cancelled = True
            raise WorkflowCancelled
        return self.entries[name]

    def record_choices(self, name: str) -> None:
        """Write what another run could get otherwise, before a step does something with it that stays."""
        if any(is_choice(entry) for entry in self.unwritten.entries.values()):
            self.record()
            self.raise_if_cancelled(name)

    # --- the end of the run

    def suspend(self, waiting: Waiting) -> NoReturn:
        self.defers_cancel = self.recorder.is_cancelled and (self.protected > 0 or bool(self.open_blocks_ahead()))
        self.closed = Suspended(waiting)
        raise self.closed

    def close(self, error: BaseException) -> Suspended:
        """End this run with an error that the body cannot catch."""
        self.closed = Suspended(error=error)
        return self.closed

    def raise_if_closed(self) -> None:
        """Raise Suspended again, because the body has caught it."""
        if self.closed is not None:
            raise self.closed

    def raise_if_cancelled(self, name: str) -> None:
        """Raise WorkflowCancelled at a call that has not ended, and record that it did."""
        is_cancelled = self._is_cancelled or self.recorder.is_cancelled
        if self.protected or not is_cancelled or self.open_blocks_ahead():
            return
        entry = self.entries.get(name) or Entry(name=name, kind=EntryKind.CANCEL, status=EntryStatus.CANCELLED)
        self.end(entry, EntryStatus.CANCELLED)
        self._is_cancelled = True
        raise WorkflowCancelled

    def open_blocks_ahead(self) -> list[str]:
        """
        Return the open blocks of earlier runs that this run has not reached, by name.

        In front of them is a call that a deploy has added or moved. A cancel there would lose their compensations.
        """
        entries = (self.entries[name] for name in self.ahead)
        return sorted(entry.name for entry in entries if entry.kind in BLOCKS and entry.status in OPEN)

    def refuse_lost_blocks(self) -> None:
        """Raise CompensationFailed if this run was cancelled, and ends before open blocks of earlier code."""
        if self.recorder.is_cancelled and (names := self.open_blocks_ahead()):
            raise CompensationFailed(
                f"compensation failed: this code has not reached {', '.join(names)}, which earlier code has left open. "
                "Deploy code that does, and requeue the workflow."
            )

    def raise_if_unwinding(self, *blocks: str) -> None:
        """
        Leave a block whose compensation an earlier run has begun, if this run has not left it by itself.

        blocks: names of compensations; none for all around the current call.
        """
        begun = next((name for name in blocks or self.blocks if is_begun_compensation(self.entries[name])), None)
        if begun is not None and not self.protected:
            raise GiveUp(f"An earlier run has begun the compensation {begun}.")


def is_choice(entry: Entry) -> bool:
    """Return whether another run could get another value: of chance, of messages and times, of a new child."""
    return entry.kind in CHOICES or (entry.kind is EntryKind.SPAWN and entry.status is EntryStatus.WAITING)


def is_begun_compensation(entry: Entry) -> bool:
    is_idle = entry.status in (EntryStatus.WAITING, EntryStatus.SKIPPED)
    return entry.kind is EntryKind.COMPENSATION and not is_idle


def digest(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()) -> Arguments:
    """
    Return the arguments of a call for the journal.

    names: of those by position, under which people see them, and REDACT masks them. New names change no digest.
    """
    try:
        text = encode([*args, kwargs] if kwargs else args)
        key = blake2b(text, digest_size=8).hexdigest()
        if (args or kwargs) and len(args) <= len(names):
            text = encode({**dict(zip(names, args, strict=False)), **kwargs})
    except (TypeError, ValueError, RecursionError):
        return NO_ARGUMENTS
    is_short = len(text) <= SHOWN_CHARACTERS and b"\\u0000" not in text  # which PostgreSQL cannot store
    return Arguments(text.decode() if is_short else None, key)


def arguments_of(arguments: Arguments) -> dict[str, Any]:
    return {"arguments": arguments.text, "digest": arguments.digest}
