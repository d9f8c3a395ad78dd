"""Tasks with a journal under the alias of a race, and a record of what their executors wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import transaction
from msgspec import structs

from jobqueue.engine.engine import Engine
from jobqueue.exceptions import ChangeRefused, ClaimLost
from jobqueue.values.ids import new_id
from jobqueue.values.journal import OPEN, Entry, EntryKind, EntryStatus
from jobqueue.values.records import ClaimedTask, Effects, NewTask, Outcome, StoredMessage
from jobqueue.values.states import Status
from verification.interleavings.backend import Claim, IsolatedBackend, outcome

OF_THIS_BACKEND = "task_id IN (SELECT id FROM jobqueue_task WHERE backend = %(backend)s)"
SAVE = f"""
    DROP TABLE IF EXISTS saved_entry;
    CREATE TEMPORARY TABLE saved_entry AS SELECT * FROM jobqueue_journalentry WHERE {OF_THIS_BACKEND}
"""
CLEAR = f"DELETE FROM jobqueue_journalentry WHERE {OF_THIS_BACKEND}"
RESTORE = "INSERT INTO jobqueue_journalentry SELECT * FROM saved_entry"

Call = tuple[UUID, str]  # the task, and the name of an entry
CHILD = "child"


@dataclass
class WorkflowRecords:
    """
    What executors wrote into journals, in order. The rules compare it to the rows.

    written: each accepted entry, with its claim. late: accepted entries of a claim after a newer one. removed: calls
    whose entries a person or a restart has deleted. ended: accepted outcomes of calls, since the entry was removed.
    terminated: tasks that people have ended without compensation.
    """

    written: list[tuple[Claim, Entry]] = field(default_factory=list)
    late: list[tuple[Claim, str]] = field(default_factory=list)
    removed: set[Call] = field(default_factory=set)
    ended: dict[Call, list[int]] = field(default_factory=dict)
    changed_by_people: set[Call] = field(default_factory=set)
    terminated: set[UUID] = field(default_factory=set)


def entry(
    name: str, kind: EntryKind = EntryKind.STEP, status: EntryStatus = EntryStatus.SUCCESSFUL, **more: Any
) -> Entry:
    return Entry(name=name, kind=kind, status=status, **more)


# Returns the outcome of a run of the body, with the entries and effects in it.
Body = Callable[[ClaimedTask, Sequence[Entry], Sequence[StoredMessage]], Outcome]


class WorkflowBackend(IsolatedBackend):
    """Tasks with a journal, and what executors and people do with it."""

    def __init__(self, kind: type[Engine]) -> None:
        super().__init__(kind)
        self.journals = WorkflowRecords()

    # --- between orders

    def save(self) -> None:
        super().save()
        self._execute(SAVE)
        self._saved_journals = deepcopy(self.journals)

    def restore(self) -> None:
        self._execute(CLEAR)
        super().restore()
        self._execute(RESTORE)
        self.journals = deepcopy(self._saved_journals)

    def clear(self) -> None:
        self._execute(CLEAR)
        super().clear()

    # --- what executors do

    def record(self, claimed: ClaimedTask, *entries: Entry, effects: Effects = Effects()) -> bool:  # noqa: B008
        """Record entries as an executor does. Return whether it still held the claim."""
        claim = (claimed.id, claimed.claim_number)
        written = stamped(claimed, *entries)
        try:
            self.engine.journal.record(claimed, self._executors[claim], written, effects)
        except ClaimLost:
            return False
        self._note(claim, written)
        self.records.consumed += effects.consumed
        self.names |= {child.id: "spawned" for child in effects.spawn}
        return True

    def record_in_transaction(self, claimed: ClaimedTask, *entries: Entry) -> bool:
        """Record entries as an atomic step does."""
        claim = (claimed.id, claimed.claim_number)
        written = stamped(claimed, *entries)
        try:
            with transaction.atomic():
                self.engine.journal.record(claimed, self._executors[claim], written)
        except ClaimLost:
            return False
        self._note(claim, written)
        return True

    def note_crashed(self, claimed: ClaimedTask, *entries: Entry, child: NewTask) -> None:
        """Note entries whose executor died after the commit."""
        self._note((claimed.id, claimed.claim_number), stamped(claimed, *entries))
        self.names[child.id] = "spawned"

    def record_crashed(self, result: Outcome) -> None:
        """Note an outcome whose executor died after the commit."""
        self._record_done(result, result.status)

    def step(self, claimed: ClaimedTask, *names: str) -> bool:
        """Run the steps that are not recorded. Return whether the executor still held the claim at each of them."""
        by_name = {entry.name for entry in self.engine.journal.read(claimed.id).entries if entry.status not in OPEN}
        return all(self.record(claimed, entry(name)) for name in names if name not in by_name)

    def run(self, *names: str, body: Body) -> None:
        """Claim one workflow, read its journal and inbox, and commit what the body returns. None READY: do nothing."""
        for claimed in self.claim(*names):
            entries = self.engine.journal.read(claimed.id).entries
            self.commit(body(claimed, entries, self.read(claimed.id)))

    def _record_done(self, result: Outcome, entered: Status) -> None:
        super()._record_done(result, entered)
        claim = (result.task_id, result.claim_number)
        if result.effects.restart is not None:
            self._remove(result.task_id)
        self._note(claim, result.effects.journal)

    def _note(self, claim: Claim, entries: Sequence[Entry]) -> None:
        newest = max(number for pk, number in self.records.claims if pk == claim[0])
        for written in entries:
            self.journals.written.append((claim, written))
            if claim[1] != newest:
                self.journals.late.append((claim, written.name))
            if written.status not in OPEN:
                self.journals.ended.setdefault((claim[0], written.name), []).append(claim[1])

    def forget_unspawned(self, cancelled: Collection[UUID], present: Collection[UUID | None]) -> None:
        """
        Forget the children that a write left out, because the cancel of their workflow was requested.

        present: tasks and children of entries. A child without its entry, or an entry without its child, stays noted.
        """
        children = {entry.child_id for claim, entry in self.journals.written if claim[0] in cancelled}
        unspawned = children - {None, *present}
        self.journals.written = [pair for pair in self.journals.written if pair[1].child_id not in unspawned]
        self.names = {pk: name for pk, name in self.names.items() if pk not in unspawned}

    def _remove(self, task_id: UUID, first: str = "") -> None:
        """Forget the entries of a task, or those from one on."""
        names = list(dict.fromkeys(entry.name for (pk, _), entry in self.journals.written if pk == task_id))
        gone = names[names.index(first) :] if first in names else [] if first else names
        for name in gone:
            self.journals.removed.add((task_id, name))
            self.journals.ended.pop((task_id, name), None)
        self.journals.written = [
            (claim, entry) for claim, entry in self.journals.written if claim[0] != task_id or entry.name not in gone
        ]

    # --- what people do

    def rewind(self, task_id: UUID, name: str) -> None:
        with suppress(ChangeRefused):
            self.engine.journal.rewind(task_id, name)
            self._remove(task_id, name)

    def skip(self, task_id: UUID, name: str) -> None:
        with suppress(ChangeRefused):
            self.engine.journal.skip(task_id, name)
            self.journals.changed_by_people.add((task_id, name))

    def terminate(self, task_id: UUID) -> None:
        with transaction.atomic():
            report = self.engine.tasks.cancel([task_id], at_once=True)
        if report.cancelled:
            self._record_finished(task_id, Status.CANCELLED)
            self.journals.terminated.add(task_id)
            newest = max(claim for claim in self.records.claims if claim[0] == task_id)
            if newest not in self.records.endings:
                self._record_ending(newest, "terminated")
        if report.parents:
            self.engine.messages.wake(report.parents)


# --- bodies


def stamped(claimed: ClaimedTask, *entries: Entry) -> list[Entry]:
    return [structs.replace(entry, value=str(claimed.claim_number)) for entry in entries]


def effects_of(claimed: ClaimedTask, messages: Sequence[StoredMessage], *entries: Entry, **more: Any) -> Effects:
    return Effects(consumed=[message.id for message in messages], journal=stamped(claimed, *entries), **more)


def receive(claimed: ClaimedTask, entries: Sequence[Entry], messages: Sequence[StoredMessage]) -> Outcome:
    """Wait for a message, an hour at most, and end."""
    by_name = {entry.name: entry for entry in entries}
    if (waiting := by_name.get("receive")) is None:
        effects = effects_of(claimed, (), entry("receive", EntryKind.RECEIVE, EntryStatus.WAITING, due_seconds=3600.0))
        return outcome(claimed, Status.SUSPENDED, effects=effects, wake_after_seconds=3600.0)
    if waiting.status is not EntryStatus.WAITING:
        return outcome(claimed, Status.SUCCESSFUL, return_value="1")
    if messages:
        effects = effects_of(claimed, messages[:1], entry("receive", EntryKind.RECEIVE))
        return outcome(claimed, Status.SUCCESSFUL, effects=effects, return_value="1")
    if claimed.timed_out:
        effects = effects_of(claimed, (), entry("receive", EntryKind.RECEIVE, EntryStatus.TIMED_OUT))
        return outcome(claimed, Status.SUCCESSFUL, effects=effects, return_value="null")
    return outcome(claimed, Status.SUSPENDED, wake_after_seconds=3600.0)


def gather(claimed: ClaimedTask, entries: Sequence[Entry], messages: Sequence[StoredMessage]) -> Outcome:
    """Spawn a child, wait for its end, and end. A compensation is open meanwhile."""
    by_name = {entry.name: entry for entry in entries}
    if CHILD not in by_name:
        child = NewTask(id=new_id(), task_type="tests.noop", queue_name="spawned")
        new = [entry(CHILD, EntryKind.SPAWN, EntryStatus.WAITING, child_id=child.id)]
        if "refund" not in by_name:
            new.insert(0, entry("refund", EntryKind.COMPENSATION, EntryStatus.WAITING))
        effects = effects_of(claimed, messages, *new, spawn=[child])
        return outcome(claimed, Status.SUSPENDED, effects=effects)
    ends = [message for message in messages if message.child_status is not None]
    if by_name[CHILD].status is EntryStatus.WAITING and not ends:
        return outcome(claimed, Status.SUSPENDED)
    ended = structs.replace(by_name[CHILD], status=EntryStatus.SUCCESSFUL)
    closed = structs.replace(by_name["refund"], status=EntryStatus.SKIPPED)
    effects = effects_of(claimed, ends, ended, closed)
    return outcome(claimed, Status.SUCCESSFUL, effects=effects, return_value="1")


def compensate(claimed: ClaimedTask, entries: Sequence[Entry], messages: Sequence[StoredMessage]) -> Outcome:
    """Run the open compensation, and end as cancelled."""
    undone = [
        structs.replace(entry, status=EntryStatus.SUCCESSFUL)
        for entry in entries
        if entry.kind is EntryKind.COMPENSATION and entry.status in OPEN
    ]
    effects = effects_of(claimed, messages, *undone, finishes_itself=True)
    return outcome(claimed, Status.CANCELLED, effects=effects)


def gather_or_compensate(backend: WorkflowBackend) -> Body:
    """Return a body that learns from the journal whether its cancel was requested."""

    def body(claimed: ClaimedTask, entries: Sequence[Entry], messages: Sequence[StoredMessage]) -> Outcome:
        is_cancelled = backend.engine.journal.read(claimed.id).is_cancel_requested
        return (compensate if is_cancelled else gather)(claimed, entries, messages)

    return body
