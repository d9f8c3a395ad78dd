"""A scenario's world: rows of its own, the engine's verbs as executors use them, and a ledger of what they said."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction
from msgspec.structs import replace

from jobqueue.conf import parse
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import TaskFinished, TaskNotFound
from jobqueue.models import Counter, CounterDelta, Queue
from jobqueue.records import (
    FINAL,
    NO_EFFECTS,
    ClaimedTask,
    ClaimRequest,
    CommitResult,
    Effects,
    ExecutorInfo,
    NewMessage,
    NewTask,
    Outcome,
    Status,
    StoredMessage,
)
from jobqueue.serialization.ids import new_id
from verification.interleavings.stepper import Place, rest

Decide = Callable[[ClaimedTask, Sequence[StoredMessage]], Outcome]
Claim = tuple[UUID, int]
Token = tuple[str, object]  # what tells one message from another: ("message", body) or ("child", sender_id)

OPTIONS = parse(
    {
        "DATABASE": "default",
        "HEARTBEAT_TIMEOUT": 3600.0,  # longer than all orders: only who is set back is lost
        "RETENTION": {"SUCCESSFUL": None, "FAILED": 0, "CANCELLED": None},
    }
)
ENDED_BADLY = (Status.FAILED, Status.CANCELLED)

# Of one world; its rows as they are before each order lie in temporary tables.
MAIL = "task_id IN (SELECT id FROM jobqueue_task WHERE backend = %(backend)s)"
SAVE = f"""
    DROP TABLE IF EXISTS saved_executor, saved_task, saved_mail;
    CREATE TEMPORARY TABLE saved_executor AS SELECT * FROM jobqueue_executor WHERE backend = %(backend)s;
    CREATE TEMPORARY TABLE saved_task AS SELECT * FROM jobqueue_task WHERE backend = %(backend)s;
    CREATE TEMPORARY TABLE saved_mail AS SELECT * FROM jobqueue_inboxmessage WHERE {MAIL}
"""
CLEAR = f"""
    DELETE FROM jobqueue_inboxmessage WHERE {MAIL};
    DELETE FROM jobqueue_task WHERE backend = %(backend)s;
    DELETE FROM jobqueue_executor WHERE backend = %(backend)s
"""
RESTORE = f"""
    {CLEAR};
    INSERT INTO jobqueue_executor SELECT * FROM saved_executor;
    INSERT INTO jobqueue_task SELECT * FROM saved_task;
    INSERT INTO jobqueue_inboxmessage SELECT * FROM saved_mail
"""

_numbers = count()


@dataclass
class Ledger:
    """
    What the actors were told, in the order in which they were told it.

    endings: how each claim ended, which must be once. read: the messages that a poll saw. late: commits that the
    engine took from a claim that somebody else had replaced. left: what the last good poll read and did not want yet.
    to: the receiver of each message. ended, ended_badly, requeued, pruned: how often. holders: who was told to
    have a key. submitted: idempotency keys, who was told to have them, and whether it was new. doomed: whose
    children were to end with them. owed: who is still to be woken. beaten: executors whose beat was answered.
    robbed: claims taken from those who had beaten before anybody looked.
    """

    claims: list[Claim] = field(default_factory=list)
    endings: dict[Claim, list[str]] = field(default_factory=dict)
    late: list[Claim] = field(default_factory=list)
    read: dict[int, Token] = field(default_factory=dict)
    left: dict[UUID, set[int]] = field(default_factory=dict)
    consumed: list[int] = field(default_factory=list)
    accepted: list[Token] = field(default_factory=list)
    refused: list[Token] = field(default_factory=list)
    to: dict[Token, UUID] = field(default_factory=dict)
    ended: collections.Counter[UUID] = field(default_factory=collections.Counter)
    ended_badly: collections.Counter[UUID] = field(default_factory=collections.Counter)
    requeued: collections.Counter[UUID] = field(default_factory=collections.Counter)
    pruned: int = 0
    holders: list[UUID] = field(default_factory=list)
    submitted: list[tuple[str, UUID, bool]] = field(default_factory=list)
    doomed: set[UUID] = field(default_factory=set)
    owed: set[UUID] = field(default_factory=set)
    beaten: set[UUID] = field(default_factory=set)
    robbed: list[Claim] = field(default_factory=list)


class World:
    """Queue rows under an alias of their own, so that no verb sees those of other worlds."""

    def __init__(self, kind: type[Engine]) -> None:
        self.engine = kind(f"world-{os.getpid()}-{next(_numbers)}", OPTIONS)
        self.ledger = Ledger()
        self.names: dict[UUID, str] = {}
        self._executors: dict[Claim, UUID] = {}

    # --- between orders

    def save(self) -> None:
        """Remember how everything is."""
        self._execute(SAVE)
        self._saved = deepcopy((self.ledger, self.names))

    def restore(self) -> None:
        """Let everything be as it was."""
        self._execute(RESTORE)
        self.ledger, self.names = deepcopy(self._saved)

    def clear(self) -> None:
        self._execute(CLEAR)
        for model in (Queue, Counter, CounterDelta):
            model.objects.filter(backend=self.engine.alias).delete()

    def _execute(self, sql: str) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql, {"backend": self.engine.alias})

    # --- before the order

    def add(self, name: str, **changes: Any) -> UUID:
        """Enqueue a READY task in a queue of its name."""
        pk = new_id()
        self.engine.enqueue([NewTask(id=pk, task_type="tests.noop", queue_name=name, **changes)])
        self.names[pk] = name
        return pk

    def running(self, name: str, executor_id: UUID | None = None, **changes: Any) -> ClaimedTask:
        self.add(name, **changes)
        (claimed,) = self.claim(name, executor_id=executor_id)
        return claimed

    def suspended(self, name: str, **changes: Any) -> UUID:
        claimed = self.running(name)
        self.commit(outcome(claimed, Status.SUSPENDED, **changes))
        return claimed.id

    def ended(self, name: str, status: Status = Status.FAILED, **changes: Any) -> UUID:
        claimed = self.running(name, **changes)
        self.commit(outcome(claimed, status))
        return claimed.id

    def lost(self, name: str, **changes: Any) -> ClaimedTask:
        """A task in the hands of an executor that stopped beating."""
        executor_id = uuid4()
        self.engine.heartbeat(sign_of(executor_id))
        claimed = self.running(name, executor_id=executor_id, **changes)
        long_ago = self.engine.now().replace(year=2001)
        self.engine.executors.filter(pk=executor_id).update(heartbeat=long_ago)
        self.engine.tasks.filter(pk=claimed.id).update(claimed_at=long_ago)
        return claimed

    # --- what actors do

    def claim(self, *names: str, limit: int = 1, executor_id: UUID | None = None) -> list[ClaimedTask]:
        demand = ClaimRequest(executor_id=executor_id or uuid4(), queues=names, limit=limit)
        claimed = self.engine.claim(demand)
        self._note_claims(demand, claimed)
        return claimed

    def _note_claims(self, demand: ClaimRequest, claimed: Sequence[ClaimedTask]) -> None:
        claims = [(task.id, task.claim_number) for task in claimed]
        self.ledger.claims += claims
        self._executors |= dict.fromkeys(claims, demand.executor_id)

    def read(self, task_id: UUID) -> list[StoredMessage]:
        found = self.engine.read_messages([task_id]).get(task_id, [])
        self.ledger.read |= {message.id: token(message) for message in found}
        return found

    def poll(self, *names: str, decide: Decide, wait: bool = False) -> None:
        """Claim one task, read its mail, commit what is decided; nothing where nothing is READY."""
        for claimed in self.claim(*names):
            self.commit(decide(claimed, self.read(claimed.id)), wait=wait)

    def loop(self, result: Outcome, *names: str) -> list[ClaimedTask]:
        """Commit and claim in one transaction."""
        demand = ClaimRequest(executor_id=self._executors[result.task_id, result.claim_number], queues=names, limit=1)
        answer, claimed = self.engine.commit_and_claim([result], demand)
        # What the answer tells is older than the claims that came in the same transaction.
        again = self._note_answer([result], answer)
        self._note_claims(demand, claimed)
        self._follow_up(answer)
        if again:
            rest(Place.RESTING)
            self.commit(*again)
        return claimed

    def commit(self, *results: Outcome, wait: bool = False) -> None:
        """Commit as an executor does: what is unknown, since somebody looked at the row just then, comes again."""
        left: Sequence[Outcome] = results
        # The second time round it does nothing in between that the first time has not shown.
        places = chain([Place.RESTING], repeat(Place.IDLE))
        while left:
            answer = self.engine.commit(left, wait=wait)
            left = self._note_answer(left, answer)
            self._follow_up(answer)
            if answer.unknown:
                rest(next(places))

    def _follow_up(self, answer: CommitResult) -> None:
        if answer.wake:
            self.engine.wake(answer.wake)

    def _note_answer(self, results: Sequence[Outcome], answer: CommitResult) -> list[Outcome]:
        """Write down what was done; gives what is to be committed (again)."""
        again = []
        for result in results:
            if result.task_id in answer.done:
                self._note_done(result, answer.done[result.task_id])
            elif result.task_id in answer.unknown:
                again.append(result)
            elif isinstance(error := answer.refused.get(result.task_id), (TaskFinished, TaskNotFound)):
                self.ledger.refused += sent(result)
                again.append(failed(result))
            elif error is not None:
                raise error
        return again

    def _note_done(self, result: Outcome, entered: Status) -> None:
        claim = (result.task_id, result.claim_number)
        if claim != max(one for one in self.ledger.claims if one[0] == result.task_id):
            self.ledger.late.append(claim)
        self._note_ending(claim, "committed" if result.is_good_poll else "given back")
        self.ledger.consumed += result.effects.consumed
        self.ledger.left[result.task_id] = set(result.effects.left)
        self.ledger.accepted += sent(result)
        self.ledger.to |= {("message", json.loads(one.body)): one.task_id for one in result.effects.send}
        if entered in FINAL:
            self._note_end(result.task_id, entered)
            if result.effects.cancel_children:
                self.ledger.doomed.add(result.task_id)
        if entered is not Status.CANCELLED:
            self.names |= {child.id: "spawned" for child in result.effects.spawn}

    def _note_end(self, task_id: UUID, status: Status) -> None:
        self.ledger.ended[task_id] += 1
        self.ledger.ended_badly[task_id] += status in ENDED_BADLY

    def send(self, task_id: UUID, *bodies: str, dedupe_key: str | None = None) -> None:
        """What a view does: send in its transaction, and wake after the commit."""
        if self.insert(task_id, *bodies, dedupe_key=dedupe_key):
            self.engine.wake([task_id])

    def insert(self, task_id: UUID, *bodies: str, dedupe_key: str | None = None) -> bool:
        """Send in a transaction; whether the receiver took it."""
        messages = [NewMessage(task_id=task_id, body=json.dumps(body), dedupe_key=dedupe_key) for body in bodies]
        tokens: list[Token] = [("message", body) for body in bodies]
        self.ledger.to |= dict.fromkeys(tokens, task_id)
        try:
            with transaction.atomic():
                self.engine.send(messages)
        except (TaskFinished, TaskNotFound):
            self.ledger.refused += tokens
            return False
        self.ledger.accepted += tokens
        return True

    def take_back_a_message(self, task_id: UUID, body: str, dedupe_key: str | None = None) -> None:
        """What a view does that fails after it has sent."""
        with transaction.atomic():
            self.engine.send([NewMessage(task_id=task_id, body=json.dumps(body), dedupe_key=dedupe_key)])
            transaction.set_rollback(True)

    def cancel(self, task_id: UUID, *, tree: bool = False, wait: bool = False) -> None:
        """As api.cancel() does: what is busy is cancelled a little later; or, as the engine's own callers do, wait."""
        if tree:
            self.ledger.doomed.add(task_id)
        ids: Collection[UUID] = [task_id]
        places = chain([Place.RESTING], repeat(Place.IDLE))
        while ids:
            with transaction.atomic():
                report = self.engine.cancel(ids, tree=tree, wait=wait)
            if report.cancelled and not tree:
                self._note_end(task_id, Status.CANCELLED)
            if report.parents:
                self.engine.wake(report.parents)
            if ids := report.busy:
                rest(next(places))

    def requeue(self, task_id: UUID) -> None:
        with transaction.atomic():
            requeued = self.engine.requeue([task_id]).requeued
        self.ledger.requeued[task_id] += requeued

    def prune(self) -> None:
        pruned = self.engine.prune()
        self.ledger.pruned += pruned

    def enqueue(self, name: str, key: str) -> None:
        """What a view does that wants one task of a key."""
        pk = new_id()
        with transaction.atomic():
            (answer,) = self.engine.enqueue([NewTask(id=pk, task_type="tests.noop", queue_name=name, key=key)])
        if answer.created:
            self.names[pk] = name
        self.ledger.holders.append(answer.id)

    def submit(self, name: str, *keys: str) -> None:
        """What a submission over HTTP does: tasks of idempotency keys, and a look at what was there before."""
        rows = [NewTask(id=new_id(), task_type="tests.noop", queue_name=name, idempotency_key=key) for key in keys]
        with self.engine.transaction():
            answers = self.engine.enqueue_once(rows)
            seen = self.engine.tasks.filter(pk__in={answer.id for answer in answers if not answer.created})
            list(seen.values_list("pk", "idempotency_digest"))
        self.names |= {answer.id: name for answer in answers if answer.created}
        self.ledger.submitted += [(key, one.id, one.created) for key, one in zip(keys, answers, strict=True)]

    def still_holds(self, claimed: ClaimedTask) -> bool:
        """Let who holds a claim beat; whether it is told that it still does."""
        executor_id = self._executors[claimed.id, claimed.claim_number]
        held = self.engine.heartbeat(sign_of(executor_id))
        self.ledger.beaten.add(executor_id)
        return any((one.id, one.claim_number) == (claimed.id, claimed.claim_number) for one in held)

    def rescue(self) -> None:
        before, beaten = dict(self.ledger.claims), set(self.ledger.beaten)
        for rescued in self.engine.rescue():
            if rescued.executor_id in beaten:
                self.ledger.robbed.append((rescued.id, before[rescued.id]))
            self._note_ending((rescued.id, before[rescued.id]), "rescued")
            if rescued.status in FINAL:
                self._note_end(rescued.id, rescued.status)

    def _note_ending(self, claim: Claim, how: str) -> None:
        self.ledger.endings.setdefault(claim, []).append(how)


def sign_of(executor_id: UUID) -> ExecutorInfo:
    return ExecutorInfo(executor_id=executor_id, name="", host="", pid=1, versions={}, queues=[], slots=1)


def token(message: StoredMessage) -> Token:
    return (
        ("message", json.loads(message.body or "null"))
        if message.child_status is None
        else ("child", message.sender_id)
    )


def outcome(claimed: ClaimedTask, status: Status, mail: Sequence[StoredMessage] = (), **changes: Any) -> Outcome:
    """The outcome of a good poll that consumes this mail, and signs the task's state with its claim."""
    effects = Effects(consumed=[message.id for message in mail]) if mail else NO_EFFECTS
    values: dict[str, Any] = {
        "task_id": claimed.id,
        "claim_number": claimed.claim_number,
        "status": status,
        "attempts": 0,
        "parent_id": claimed.parent_id,
        "is_good_poll": True,
        "inner_state": str(claimed.claim_number),
        "effects": effects,
    }
    return Outcome(**values | changes)


def suspend(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.SUSPENDED, mail)


def sleep(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.SUSPENDED, mail, wake_after_seconds=3600.0)


def done(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.SUCCESSFUL, mail, return_value="1")


def give_up(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.FAILED, mail, error='"given up"')


def done_with_children(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    effects = Effects(consumed=[message.id for message in mail], cancel_children=True)
    return outcome(claimed, Status.SUCCESSFUL, return_value="1", effects=effects)


def spawn(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    """Have a child, and wait for it."""
    child = NewTask(id=new_id(), task_type="tests.noop", queue_name="spawned")
    effects = Effects(consumed=[message.id for message in mail], spawn=[child])
    return outcome(claimed, Status.SUSPENDED, effects=effects)


def leave(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    """Wait for other mail than what is there."""
    result = outcome(claimed, Status.SUSPENDED, wake_after_seconds=3600.0)
    return replace(result, effects=Effects(left=[message.id for message in mail]))


def retry(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    return failed(outcome(claimed, Status.SCHEDULED))


def failed(result: Outcome) -> Outcome:
    """A poll that failed and is to be tried again: state and inbox stay as they are."""
    return Outcome(
        task_id=result.task_id,
        claim_number=result.claim_number,
        parent_id=result.parent_id,
        status=Status.SCHEDULED,
        wake_after_seconds=3600.0,
        attempts=result.attempts + 1,
    )


def sent(result: Outcome) -> list[Token]:
    return [("message", json.loads(message.body)) for message in result.effects.send]


def telling(decide: Decide, receiver: UUID, body: str) -> Decide:
    """The same, and send a message on the way."""

    def decide_and_tell(claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
        result = decide(claimed, mail)
        message = NewMessage(task_id=receiver, sender_id=claimed.id, body=json.dumps(f"{body}-{claimed.claim_number}"))
        return replace(result, effects=Effects(consumed=result.effects.consumed, send=[message]))

    return decide_and_tell
