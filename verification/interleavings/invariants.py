"""The invariants that hold after every order. Then polls run until no task is left, and the invariants hold again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import F

from jobqueue.values.states import FINAL, Status
from verification.interleavings.backend import IsolatedBackend, MessageKey, suspend

MAX_ROUNDS = 20

LOST_WAKE_UP = "lost wake-up"
STOLEN_FROM_LIVING = "no claim is taken from an executor with a fresh heartbeat"
ONE_COMMIT = "exactly one commit per claim"
STALE = "a stale claim has no effect"
LOST_MESSAGE = "no message is lost"
CONSUMED_TWICE = "no message is consumed twice"
REFUSED = "a refused message is not stored"
REPORTED_ONCE = "a parent gets exactly one message of each end of a child"
REQUEUED_ONCE = "a failed or cancelled task is requeued once"
ENDED_FIRST = "only finished tasks are pruned"
KEY_OWNER = "an enqueue with a key returns the live task of the key"
IDEMPOTENCY = "an idempotency key is used once"
FAMILY = "children end with their parent"
COMES_TO_REST = "all tasks come to an end"

TASKS = """
    SELECT id, parent_id, status, claim_number, polls, inner_state::text, wake_at IS NULL
    FROM jobqueue_task WHERE backend = %s ORDER BY id
"""
MESSAGES = """
    SELECT message.id, task_id, sender_id, message.child_status, message.body #>> '{}', consumed_at IS NULL
    FROM jobqueue_inboxmessage AS message JOIN jobqueue_task AS task ON task.id = task_id
    WHERE backend = %s ORDER BY message.id
"""


class ObservedTask(NamedTuple):
    id: UUID
    parent_id: UUID | None
    status: str
    claim_number: int
    polls: int
    inner_state: str | None
    has_no_wake_at: bool


class MessageRow(NamedTuple):
    id: int
    task_id: UUID
    sender_id: UUID | None
    child_status: str | None
    body: str | None
    is_unread: bool

    @property
    def key(self) -> MessageKey:
        if self.child_status == Status.READY or (self.child_status is None and (self.body or "").startswith("{")):
            return ("batch", self.id)
        return ("message", self.body) if self.child_status is None else ("child", self.sender_id)


@dataclass
class Snapshot:
    """The rows of a backend, as they are now."""

    backend: IsolatedBackend
    tasks: list[ObservedTask] = field(default_factory=list)
    messages: list[MessageRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(TASKS, [self.backend.engine.alias])
            self.tasks = [ObservedTask(*row) for row in cursor.fetchall()]
            cursor.execute(MESSAGES, [self.backend.engine.alias])
            self.messages = [MessageRow(*row) for row in cursor.fetchall()]

    def unread(self, task_id: UUID) -> list[MessageRow]:
        return [message for message in self.messages if message.task_id == task_id and message.is_unread]

    def shape(self) -> tuple[Any, ...]:
        """Return what identifies this final state, without ids and times."""
        name, records = self.backend.names, self.backend.records
        rows = [(name[row.id], *row[2:], len(self.unread(row.id))) for row in self.tasks]
        endings = [(name[pk], number, tuple(how)) for (pk, number), how in records.endings.items()]
        return (tuple(rows), tuple(sorted(endings)), len(records.consumed), len(records.accepted), len(records.refused))


def problems(snapshot: Snapshot) -> Iterator[str]:
    """
    Return each violated invariant. No maintenance has run yet, so this finds tasks that only the sweep would wake.
    """
    yield from _wake_ups(snapshot)
    yield from _claims(snapshot)
    yield from _messages(snapshot)
    yield from _reports(snapshot)
    yield from _lives(snapshot)
    yield from _submissions(snapshot)
    yield from _families(snapshot)


def gone(snapshot: Snapshot) -> set[UUID]:
    """Return the tasks without a row."""
    return snapshot.backend.names.keys() - {row.id for row in snapshot.tasks}


def _wake_ups(snapshot: Snapshot) -> Iterator[str]:
    for row in snapshot.tasks:
        left = snapshot.backend.records.left_unread.get(row.id, set())
        missed = [message for message in snapshot.unread(row.id) if message.id not in left]
        if row.status == Status.SUSPENDED and missed and row.id not in snapshot.backend.records.pending_wakes:
            yield f"{LOST_WAKE_UP}: {snapshot.backend.names[row.id]} is SUSPENDED with {len(missed)} unread messages"


def _claims(snapshot: Snapshot) -> Iterator[str]:
    records, names = snapshot.backend.records, snapshot.backend.names
    status = {row.id: row.status for row in snapshot.tasks}
    latest = dict(records.claims)
    for (pk, number), times in Counter(records.claims).items():
        if times > 1:
            yield f"{ONE_COMMIT}: claim {number} of {names[pk]} was returned {times} times"
    for pk, number in records.claims:
        ended = records.endings.get((pk, number), [])
        is_held = latest[pk] == number and status.get(pk) == Status.RUNNING
        if len(ended) != (0 if is_held else 1):
            yield f"{ONE_COMMIT}: claim {number} of {names[pk]} ended {ended}, the task is {status.get(pk)}"
    for pk, number in records.stale_commits:
        yield f"{STALE}: claim {number} of {names[pk]} was committed when {latest[pk]} had replaced it"
    for pk, number in records.lost_claims:
        yield f"{STOLEN_FROM_LIVING}: claim {number} of {names[pk]}"
    for row in snapshot.tasks:
        good = [n for (pk, n), how in records.endings.items() if pk == row.id and "committed" in how]
        if row.inner_state is not None and int(row.inner_state) != max(good, default=0):
            yield f"{STALE}: the state of {names[row.id]} is that of claim {row.inner_state}, of committed {good}"


def _messages(snapshot: Snapshot) -> Iterator[str]:
    records = snapshot.backend.records
    unread = Counter(message.key for message in snapshot.messages if message.is_unread)
    consumed = Counter(records.keys_read[pk] for pk in records.consumed)
    pruned = gone(snapshot)
    for message in records.accepted:
        if unread[message] + consumed[message] == 0 and records.receivers[message] not in pruned:
            yield f"{LOST_MESSAGE}: {message} was not consumed and is not in the inbox"
    for pk, times in Counter(records.consumed).items():
        if times > 1:
            yield f"{CONSUMED_TWICE}: {records.keys_read[pk]} by {times} polls"
    for message, times in (unread + consumed).items():
        kind, sender = message
        ends = 1 + records.requeued[sender] if kind == "child" and isinstance(sender, UUID) else 1
        if times > ends:
            yield f"{CONSUMED_TWICE}: {message} is in the inbox {times} times"
    for message in records.refused:
        if unread[message] + consumed[message]:
            yield f"{REFUSED}: {message}"


def _reports(snapshot: Snapshot) -> Iterator[str]:
    records, status = snapshot.backend.records, {row.id: row.status for row in snapshot.tasks}
    received: defaultdict[UUID, int] = defaultdict(int)
    reports = [message.key for message in snapshot.messages if message.is_unread] + [
        records.keys_read[pk] for pk in records.consumed
    ]
    for kind, sender in reports:
        if kind == "child" and isinstance(sender, UUID):
            received[sender] += 1
    for row in snapshot.tasks:
        if row.parent_id is None:
            continue
        maximum = int(row.status in FINAL) + records.requeued[row.id]  # a requeue withdraws an unread message
        minimum = int(row.status in FINAL) if status.get(row.parent_id, Status.SUCCESSFUL) not in FINAL else 0
        if not minimum <= received[row.id] <= maximum:
            name, times = snapshot.backend.names[row.id], received[row.id]
            yield f"{REPORTED_ONCE}: {row.status} {name} was reported to its parent {times} times"


def _lives(snapshot: Snapshot) -> Iterator[str]:
    records, names, pruned = snapshot.backend.records, snapshot.backend.names, gone(snapshot)
    for pk, times in records.requeued.items():
        if times > (failures := records.ended_unsuccessfully[pk]):
            yield f"{REQUEUED_ONCE}: {names[pk]} failed {failures} times, was requeued {times} times"
    if len(pruned) != records.pruned:
        yield f"{ENDED_FIRST}: prune returned {records.pruned}, {len(pruned)} rows are gone"
    for pk in pruned:
        if records.ended[pk] <= records.requeued[pk]:
            yield f"{ENDED_FIRST}: {names[pk]} ended {records.ended[pk]} times, requeued {records.requeued[pk]}"
    live = {row.id for row in snapshot.tasks if row.status not in FINAL}
    for pk in records.key_owners:
        if pk not in live:
            yield f"{KEY_OWNER}: {names[pk]} is not live"


def _submissions(snapshot: Snapshot) -> Iterator[str]:
    """An idempotency key has a second task only after the first one was pruned."""
    answered: defaultdict[str, set[UUID]] = defaultdict(set)
    created: defaultdict[str, set[UUID]] = defaultdict(set)
    for key, pk, is_new in snapshot.backend.records.submitted:
        answered[key].add(pk)
        if is_new:
            created[key].add(pk)
    for key, ids in answered.items():
        if len(created[key] - gone(snapshot)) > 1 or ids != created[key]:
            yield f"{IDEMPOTENCY}: {key} has {len(created[key])} tasks, its senders got {len(ids)} ids"


def _families(snapshot: Snapshot) -> Iterator[str]:
    """Children of a task that ended with its children have ended. Running ones have a cancel request."""
    descendants = set(snapshot.backend.records.cancelled_trees)
    for _ in snapshot.tasks:
        descendants |= {row.id for row in snapshot.tasks if row.parent_id in descendants}
    for row in snapshot.tasks:
        if row.id in descendants - snapshot.backend.records.cancelled_trees and row.status not in (
            *FINAL,
            Status.RUNNING,
        ):
            yield f"{FAMILY}: {snapshot.backend.names[row.id]} is {row.status}"


def run_to_end(backend: IsolatedBackend) -> Iterator[str]:
    """Wake due tasks and poll until none is READY, without the sweep. Then no live task has unread messages."""
    engine, names = backend.engine, sorted(set(backend.names.values()))
    for _ in range(MAX_ROUNDS):
        engine.db.tasks.filter(wake_at__isnull=False).update(wake_at=F("enqueued_at"))
        engine.inbox.wake_due()
        if not engine.db.tasks.ready().exists():
            break
        backend.poll(*names, decide=suspend)
    else:
        yield f"{COMES_TO_REST}: not within {MAX_ROUNDS} polls"
    snapshot = Snapshot(backend)
    yield from problems(snapshot)
    status = {row.id: row.status for row in snapshot.tasks}
    for message in snapshot.messages:
        if message.is_unread and status[message.task_id] not in (*FINAL, Status.RUNNING):
            yield f"{COMES_TO_REST}: {message.key} stays in the inbox of a {status[message.task_id]} task"
