"""The invariants of journals, which hold after every order beside those of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from jobqueue.values.journal import OPEN, EntryKind
from jobqueue.values.states import FINAL, Status
from verification.interleavings import invariants
from verification.interleavings.backend import succeed
from verification.interleavings.workflow_backend import WorkflowBackend, gather_or_compensate, receive

FENCED = "an executor that lost its claim records nothing"
KEPT = "a recorded entry is not lost or overwritten"
RECORDED_ONCE = "the outcome of a call is recorded once"
TOGETHER = "an entry and its effect are written together"
UNDONE = "a cancel ends no workflow with an open compensation"
ENDS = "a workflow that people cannot reach comes to an end"

ENTRIES = """
    SELECT entry.task_id, entry.name, entry.kind, entry.status, entry.value #>> '{}', entry.child_id
    FROM jobqueue_journalentry AS entry JOIN jobqueue_task AS task ON task.id = entry.task_id
    WHERE backend = %s ORDER BY entry.id
"""
CANCELLED = """
    SELECT id FROM jobqueue_task WHERE backend = %s AND (cancel_requested_at IS NOT NULL OR status = 'CANCELLED')
"""


class EntryRow(NamedTuple):
    task_id: UUID
    name: str
    kind: str
    status: str
    value: str | None
    child_id: UUID | None


@dataclass
class WorkflowSnapshot(invariants.Snapshot):
    """The rows of a backend with journals, as they are now."""

    backend: WorkflowBackend
    entries: list[EntryRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tasks = [
            row._replace(inner_state=None) if (row.inner_state or "").startswith("{") else row for row in self.tasks
        ]
        with connections["default"].cursor() as cursor:
            cursor.execute(ENTRIES, [self.backend.engine.alias])
            self.entries = [EntryRow(*row) for row in cursor.fetchall()]
            cursor.execute(CANCELLED, [self.backend.engine.alias])
            cancelled = {pk for (pk,) in cursor.fetchall()}
        self.backend.forget_unspawned(
            cancelled, {row.id for row in self.tasks} | {row.child_id for row in self.entries}
        )

    def shape(self) -> tuple[object, ...]:
        names = self.backend.names
        return (*super().shape(), tuple((names[e.task_id], e.name, e.status, e.value) for e in self.entries))


def problems(snapshot: WorkflowSnapshot) -> Iterator[str]:
    """Return each violated invariant of tasks and of their journals."""
    for problem in invariants.problems(snapshot):
        # A rewind deletes the messages of the children that it forgets.
        if not (problem.startswith(invariants.REPORTED_ONCE) and snapshot.backend.journals.removed):
            yield problem
    yield from _records(snapshot)
    yield from _effects(snapshot)
    yield from _compensations(snapshot)


def _records(snapshot: WorkflowSnapshot) -> Iterator[str]:
    journals, names = snapshot.backend.journals, snapshot.backend.names
    for (pk, number), name in journals.late:
        yield f"{FENCED}: claim {number} of {names[pk]} recorded {name} after a newer claim"
    rows = {(row.task_id, row.name): row for row in snapshot.entries}
    last = {(claim[0], entry.name): entry for claim, entry in journals.written}
    gone = invariants.gone(snapshot)
    for call, entry in last.items():
        row = rows.get(call)
        if call[0] in gone or call in journals.changed_by_people:
            continue
        if row is None or (row.status, row.value) != (entry.status, entry.value):
            yield f"{KEPT}: {entry.name} of {names[call[0]]} was {entry.status} {entry.value}, and is {row}"
    for call in rows.keys() - last.keys() - journals.changed_by_people:
        yield f"{KEPT}: {call[1]} of {names[call[0]]} is in the journal, and was not recorded"
    for (pk, name), numbers in journals.ended.items():
        if len(numbers) > 1:
            yield f"{RECORDED_ONCE}: {name} of {names[pk]} was recorded by the claims {numbers}"


def _effects(snapshot: WorkflowSnapshot) -> Iterator[str]:
    names, removed = snapshot.backend.names, snapshot.backend.journals.removed
    parent_of = {row.id: row.parent_id for row in snapshot.tasks}
    spawned = {(row.task_id, row.child_id): row for row in snapshot.entries if row.kind == EntryKind.SPAWN}
    for (pk, child), row in spawned.items():
        if child not in parent_of:
            yield f"{TOGETHER}: {row.name} of {names[pk]} has no child"
    for child, parent in parent_of.items():
        is_removed = any(pk == parent for pk, _ in removed)
        if names.get(child) == "spawned" and parent is not None and (parent, child) not in spawned and not is_removed:
            yield f"{TOGETHER}: a child of {names[parent]} has no entry"
    read = snapshot.backend.records.keys_read
    consumed = {read[pk][1] for pk in snapshot.backend.records.consumed if read[pk][0] == "message"}
    received = [row for row in snapshot.entries if row.kind == EntryKind.RECEIVE and row.status == "SUCCESSFUL"]
    if len(received) > len(consumed):
        yield f"{TOGETHER}: {len(received)} receives have {len(consumed)} messages"


def _compensations(snapshot: WorkflowSnapshot) -> Iterator[str]:
    status = {row.id: row.status for row in snapshot.tasks}
    for row in snapshot.entries:
        is_open = row.kind == EntryKind.COMPENSATION and row.status in OPEN
        if (
            is_open
            and status[row.task_id] == Status.CANCELLED
            and row.task_id not in snapshot.backend.journals.terminated
        ):
            yield f"{UNDONE}: {snapshot.backend.names[row.task_id]} with {row.name}"


def run_to_end(backend: WorkflowBackend) -> Iterator[str]:
    """Let each live workflow learn of its cancel and end. Then the invariants hold again."""
    engine = backend.engine
    for _ in range(invariants.MAX_ROUNDS):
        backend.rescue()
        engine.inbox.wake_due()
        ready = list(engine.db.tasks.ready().values_list("pk", "queue_name"))
        if not ready:
            break
        for _, name in ready:
            if name == "spawned":
                backend.poll(name, decide=succeed)
            elif name == "receiver":
                backend.run(name, body=receive)
            else:
                backend.run(name, body=gather_or_compensate(backend))
    else:
        yield f"{ENDS}: not within {invariants.MAX_ROUNDS} polls"
    snapshot = WorkflowSnapshot(backend)
    yield from problems(snapshot)
    for row in snapshot.tasks:
        if row.status not in FINAL and row.id in _requested(backend):
            yield f"{ENDS}: {backend.names[row.id]} is {row.status}, although its cancel was requested"


def _requested(backend: WorkflowBackend) -> set[UUID]:
    return set(backend.engine.db.tasks.filter(cancel_requested_at__isnull=False).values_list("pk", flat=True))
