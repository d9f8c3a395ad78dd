"""What must hold after any order; and the queue driven on by the engine until nothing is left to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import F

from jobqueue.records import FINAL, Status
from verification.interleavings.world import Token, World, suspend

MOST_ROUNDS = 20

LOST_WAKE_UP = "lost wake-up"
ROBBED = "nothing is taken from who has beaten"
ONE_COMMIT = "exactly one commit per claim"
STALE = "a stale owner has no effect"
LOST_MAIL = "no message is lost"
TWICE = "no message is consumed twice"
REFUSED = "what was refused is not there"
TOLD_ONCE = "the parent is told exactly once"
ONE_LIFE = "a task that ended badly is requeued once"
ENDED_FIRST = "only what has ended is pruned"
KEY = "who asks for a key is told who has it"
ONCE = "an idempotency key is used once"
FAMILY = "children end with their parent"
QUIET_END = "the queue comes to rest"

TASKS = """
    SELECT id, parent_id, status, claim_number, polls, inner_state::text, wake_at IS NULL
    FROM jobqueue_task WHERE backend = %s ORDER BY id
"""
MESSAGES = """
    SELECT message.id, task_id, sender_id, message.child_status, message.body #>> '{}', consumed_at IS NULL
    FROM jobqueue_inboxmessage AS message JOIN jobqueue_task AS task ON task.id = task_id
    WHERE backend = %s ORDER BY message.id
"""


class Row(NamedTuple):
    id: UUID
    parent_id: UUID | None
    status: str
    claim_number: int
    polls: int
    inner_state: str | None
    sleeps_for_ever: bool


class Letter(NamedTuple):
    id: int
    task_id: UUID
    sender_id: UUID | None
    child_status: str | None
    body: str | None
    is_unread: bool

    @property
    def token(self) -> Token:
        return ("message", self.body) if self.child_status is None else ("child", self.sender_id)


@dataclass
class Seen:
    """The rows of a world, as they are now."""

    world: World
    tasks: list[Row] = field(default_factory=list)
    mail: list[Letter] = field(default_factory=list)

    def __post_init__(self) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(TASKS, [self.world.engine.alias])
            self.tasks = [Row(*row) for row in cursor.fetchall()]
            cursor.execute(MESSAGES, [self.world.engine.alias])
            self.mail = [Letter(*row) for row in cursor.fetchall()]

    def unread(self, task_id: UUID) -> list[Letter]:
        return [letter for letter in self.mail if letter.task_id == task_id and letter.is_unread]

    def shape(self) -> tuple[Any, ...]:
        """What the rows and the ledger have in common with those of other worlds that went the same way."""
        name, ledger = self.world.names, self.world.ledger
        rows = [(name[row.id], *row[2:], len(self.unread(row.id))) for row in self.tasks]
        endings = [(name[pk], number, tuple(how)) for (pk, number), how in ledger.endings.items()]
        return (tuple(rows), tuple(sorted(endings)), len(ledger.consumed), len(ledger.accepted), len(ledger.refused))


def problems(seen: Seen) -> Iterator[str]:
    """Name what does not hold; nothing is driven on, so what sleeps here was left to the sweep."""
    yield from _wake_ups(seen)
    yield from _claims(seen)
    yield from _mail(seen)
    yield from _reports(seen)
    yield from _lives(seen)
    yield from _submissions(seen)
    yield from _families(seen)


def gone(seen: Seen) -> set[UUID]:
    return seen.world.names.keys() - {row.id for row in seen.tasks}


def _wake_ups(seen: Seen) -> Iterator[str]:
    for row in seen.tasks:
        left = seen.world.ledger.left.get(row.id, set())
        missed = [letter for letter in seen.unread(row.id) if letter.id not in left]
        if row.status == Status.SUSPENDED and missed and row.id not in seen.world.ledger.owed:
            yield f"{LOST_WAKE_UP}: {seen.world.names[row.id]} sleeps on {len(missed)} unread messages"


def _claims(seen: Seen) -> Iterator[str]:
    ledger, names = seen.world.ledger, seen.world.names
    status = {row.id: row.status for row in seen.tasks}
    latest = dict(ledger.claims)
    for (pk, number), times in Counter(ledger.claims).items():
        if times > 1:
            yield f"{ONE_COMMIT}: claim {number} of {names[pk]} was handed out {times} times"
    for pk, number in ledger.claims:
        ended = ledger.endings.get((pk, number), [])
        is_held = latest[pk] == number and status.get(pk) == Status.RUNNING
        if len(ended) != (0 if is_held else 1):
            yield f"{ONE_COMMIT}: claim {number} of {names[pk]} ended {ended}, the task is {status.get(pk)}"
    for pk, number in ledger.late:
        yield f"{STALE}: claim {number} of {names[pk]} was committed when {latest[pk]} had replaced it"
    for pk, number in ledger.robbed:
        yield f"{ROBBED}: claim {number} of {names[pk]}"
    for row in seen.tasks:
        good = [n for (pk, n), how in ledger.endings.items() if pk == row.id and "committed" in how]
        if row.inner_state is not None and int(row.inner_state) != max(good, default=0):
            yield f"{STALE}: the state of {names[row.id]} is that of claim {row.inner_state}, of committed {good}"


def _mail(seen: Seen) -> Iterator[str]:
    ledger = seen.world.ledger
    unread = Counter(letter.token for letter in seen.mail if letter.is_unread)
    consumed = Counter(ledger.read[pk] for pk in ledger.consumed)
    pruned = gone(seen)
    for one in ledger.accepted:
        if unread[one] + consumed[one] == 0 and ledger.to[one] not in pruned:
            yield f"{LOST_MAIL}: {one} was neither consumed nor is it there"
    for pk, times in Counter(ledger.consumed).items():
        if times > 1:
            yield f"{TWICE}: {ledger.read[pk]} by {times} polls"
    for one, times in (unread + consumed).items():
        if times > 1:
            yield f"{TWICE}: {one} is there {times} times"
    for one in ledger.refused:
        if unread[one] + consumed[one]:
            yield f"{REFUSED}: {one}"


def _reports(seen: Seen) -> Iterator[str]:
    ledger, status = seen.world.ledger, {row.id: row.status for row in seen.tasks}
    told: defaultdict[UUID, int] = defaultdict(int)
    reports = [letter.token for letter in seen.mail if letter.is_unread] + [ledger.read[pk] for pk in ledger.consumed]
    for kind, sender in reports:
        if kind == "child" and isinstance(sender, UUID):
            told[sender] += 1
    for row in seen.tasks:
        if row.parent_id is None:
            continue
        most = int(row.status in FINAL or ledger.requeued[row.id] > 0)
        least = most if status.get(row.parent_id, Status.SUCCESSFUL) not in FINAL else 0
        if not least <= told[row.id] <= most:
            yield f"{TOLD_ONCE}: {row.status} {seen.world.names[row.id]} told its parent {told[row.id]} times"


def _lives(seen: Seen) -> Iterator[str]:
    ledger, names, pruned = seen.world.ledger, seen.world.names, gone(seen)
    for pk, times in ledger.requeued.items():
        if times > ledger.ended_badly[pk]:
            yield f"{ONE_LIFE}: {names[pk]} ended badly {ledger.ended_badly[pk]} times and was requeued {times} times"
    if len(pruned) != ledger.pruned:
        yield f"{ENDED_FIRST}: {ledger.pruned} are said to be pruned, {len(pruned)} are gone"
    for pk in pruned:
        if ledger.ended[pk] <= ledger.requeued[pk]:
            yield f"{ENDED_FIRST}: {names[pk]} ended {ledger.ended[pk]} times, was requeued {ledger.requeued[pk]} times"
    living = {row.id for row in seen.tasks if row.status not in FINAL}
    for pk in ledger.holders:
        if pk not in living:
            yield f"{KEY}: {names[pk]} is not alive"


def _submissions(seen: Seen) -> Iterator[str]:
    """Again only when who had it was pruned."""
    told: defaultdict[str, set[UUID]] = defaultdict(set)
    born: defaultdict[str, set[UUID]] = defaultdict(set)
    for key, pk, is_new in seen.world.ledger.submitted:
        told[key].add(pk)
        if is_new:
            born[key].add(pk)
    for key, ids in told.items():
        if len(born[key] - gone(seen)) > 1 or ids != born[key]:
            yield f"{ONCE}: {key} has {len(born[key])} tasks, and its senders were told of {len(ids)}"


def _families(seen: Seen) -> Iterator[str]:
    """Of those that ended with their children; what still runs was told to end."""
    below = set(seen.world.ledger.doomed)
    for _ in seen.tasks:
        below |= {row.id for row in seen.tasks if row.parent_id in below}
    for row in seen.tasks:
        if row.id in below - seen.world.ledger.doomed and row.status not in (*FINAL, Status.RUNNING):
            yield f"{FAMILY}: {seen.world.names[row.id]} is {row.status}"


def drive_on(world: World) -> Iterator[str]:
    """Let alarms ring and poll whatever is READY until nothing is; without the sweep. All living then have no mail."""
    engine, names = world.engine, sorted(set(world.names.values()))
    for _ in range(MOST_ROUNDS):
        engine.tasks.filter(wake_at__isnull=False).update(wake_at=F("enqueued_at"))
        engine.wake_due()
        if not engine.tasks.ready().exists():
            break
        world.poll(*names, decide=suspend)
    else:
        yield f"{QUIET_END}: not within {MOST_ROUNDS} polls"
    seen = Seen(world)
    yield from problems(seen)
    status = {row.id: row.status for row in seen.tasks}
    for letter in seen.mail:
        if letter.is_unread and status[letter.task_id] not in (*FINAL, Status.RUNNING):
            yield f"{QUIET_END}: {letter.token} waits for ever in the inbox of a {status[letter.task_id]} task"
