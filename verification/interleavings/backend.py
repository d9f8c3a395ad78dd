"""Create tasks under a private backend alias, call the engine as executors do, and record each answer."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.db import connections, transaction
from msgspec.structs import replace

from jobqueue.conf.options import parse_options
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import TaskFinished, TaskNotFound
from jobqueue.models import Counter, CounterDelta, Queue
from jobqueue.values.ids import new_id
from jobqueue.values.records import (
    NO_EFFECTS,
    ClaimedTask,
    ClaimRequest,
    CommitResult,
    Effects,
    ExecutorInfo,
    NewMessage,
    NewTask,
    Outcome,
    StoredMessage,
)
from jobqueue.values.states import FINAL, Status
from verification.interleavings.stepper import ClientState, rest

# Returns the outcome of a poll: succeed(), suspend() and the like.
Decide = Callable[[ClaimedTask, Sequence[StoredMessage]], Outcome]
Claim = tuple[UUID, int]
MessageKey = tuple[str, object]  # identifies a message: ("message", body) or ("child", sender_id)

OPTIONS = parse_options(
    {
        "DATABASE": "default",
        "HEARTBEAT_TIMEOUT": 3600.0,  # only executors whose heartbeat a scenario sets back are lost
        "RETENTION": {"SUCCESSFUL": None, "FAILED": 0, "CANCELLED": None},
    }
)
UNSUCCESSFUL = (Status.FAILED, Status.CANCELLED)

# Temporary tables keep the rows as they are before each order.
OF_EXECUTORS = "executor_id IN (SELECT id FROM jobqueue_executor WHERE backend = %(backend)s)"
OF_THIS_BACKEND = "task_id IN (SELECT id FROM jobqueue_task WHERE backend = %(backend)s)"
SAVE = f"""
    DROP TABLE IF EXISTS saved_executor, saved_heartbeat, saved_task, saved_message;
    CREATE TEMPORARY TABLE saved_executor AS SELECT * FROM jobqueue_executor WHERE backend = %(backend)s;
    CREATE TEMPORARY TABLE saved_heartbeat AS SELECT * FROM jobqueue_heartbeat WHERE {OF_EXECUTORS};
    CREATE TEMPORARY TABLE saved_task AS SELECT * FROM jobqueue_task WHERE backend = %(backend)s;
    CREATE TEMPORARY TABLE saved_message AS SELECT * FROM jobqueue_inboxmessage WHERE {OF_THIS_BACKEND}
"""
CLEAR = f"""
    DELETE FROM jobqueue_inboxmessage WHERE {OF_THIS_BACKEND};
    DELETE FROM jobqueue_task WHERE backend = %(backend)s;
    DELETE FROM jobqueue_heartbeat WHERE {OF_EXECUTORS};
    DELETE FROM jobqueue_executor WHERE backend = %(backend)s
"""
RESTORE = f"""
    {CLEAR};
    INSERT INTO jobqueue_executor SELECT * FROM saved_executor;
    INSERT INTO jobqueue_heartbeat SELECT * FROM saved_heartbeat;
    INSERT INTO jobqueue_task SELECT * FROM saved_task;
    INSERT INTO jobqueue_inboxmessage SELECT * FROM saved_message
"""

_numbers = count()


class Crash(Exception):
    """The process of an executor ends."""


@contextmanager
def crash_at_commit(*, after: bool) -> Iterator[None]:
    """End the process of the block before or after its first commit."""
    connection: Any = connections["default"]
    commit = connection._commit

    def crash() -> None:
        if after:
            commit()
        else:
            connection._rollback()
        raise Crash

    with patch.object(connection, "_commit", crash), suppress(Crash):
        yield


@dataclass
class Records:
    """
    What the engine answered, in order. The invariants compare it to the rows.

    It has more than 15 attributes because each kind of answer is one.
    endings: how each claim ended, which must happen once. keys_read: the messages that polls read. stale_commits:
    commits that the engine accepted from a claim after a newer one. left_unread: what the last successful poll read
    and did not consume. receivers: the receiver of each message. ended, ended_unsuccessfully, requeued, pruned:
    counts. key_owners: tasks returned as the owner of a key. submitted: idempotency key, task, and whether the task
    is new. cancelled_trees: tasks that ended together with their children. pending_wakes: tasks that a sender or
    executor still has to wake. confirmed_executors: executors whose heartbeat was confirmed. lost_claims: claims
    rescued from a confirmed executor.
    """

    claims: list[Claim] = field(default_factory=list)
    endings: dict[Claim, list[str]] = field(default_factory=dict)
    stale_commits: list[Claim] = field(default_factory=list)
    keys_read: dict[int, MessageKey] = field(default_factory=dict)
    left_unread: dict[UUID, set[int]] = field(default_factory=dict)
    consumed: list[int] = field(default_factory=list)
    accepted: list[MessageKey] = field(default_factory=list)
    refused: list[MessageKey] = field(default_factory=list)
    receivers: dict[MessageKey, UUID] = field(default_factory=dict)
    ended: collections.Counter[UUID] = field(default_factory=collections.Counter)
    ended_unsuccessfully: collections.Counter[UUID] = field(default_factory=collections.Counter)
    requeued: collections.Counter[UUID] = field(default_factory=collections.Counter)
    pruned: int = 0
    key_owners: list[UUID] = field(default_factory=list)
    submitted: list[tuple[str, UUID, bool]] = field(default_factory=list)
    cancelled_trees: set[UUID] = field(default_factory=set)
    pending_wakes: set[UUID] = field(default_factory=set)
    confirmed_executors: set[UUID] = field(default_factory=set)
    lost_claims: list[Claim] = field(default_factory=list)


class IsolatedBackend:
    """
    Rows under a backend alias of their own, so that no operation sees the rows of other scenarios.

    It has more than 20 methods because each operation of a scenario is one.
    """

    def __init__(self, kind: type[Engine]) -> None:
        self.engine = kind(f"backend-{os.getpid()}-{next(_numbers)}", OPTIONS)
        self.records = Records()
        self.names: dict[UUID, str] = {}
        self.waited: set[str] = set()  # steps of the order that waited for a lock
        self._executors: dict[Claim, UUID] = {}

    # --- between orders

    def save(self) -> None:
        """Copy all rows and records."""
        self._execute(SAVE)
        self._saved = deepcopy((self.records, self.names))

    def restore(self) -> None:
        """Return to the saved rows and records."""
        self._execute(RESTORE)
        self.records, self.names = deepcopy(self._saved)

    def clear(self) -> None:
        self._execute(CLEAR)
        for model in (Queue, Counter, CounterDelta):
            model.objects.filter(backend=self.engine.alias).delete()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Prepare this process for the orders."""
        yield

    def _execute(self, sql: str) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql, {"backend": self.engine.alias})

    # --- before the order

    def add(self, name: str, **changes: Any) -> UUID:
        """Enqueue a READY task in a queue of the same name."""
        pk = new_id()
        self.engine.enqueues.enqueue([NewTask(id=pk, task_type="tests.noop", queue_name=name, **changes)])
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
        """Create a task of an executor that stopped sending heartbeats."""
        executor_id = uuid4()
        self.engine.executors.heartbeat(executor_info(executor_id))
        claimed = self.running(name, executor_id=executor_id, **changes)
        long_ago = self.engine.db.now().replace(year=2001)
        self.engine.db.heartbeats.filter(pk=executor_id).update(at=long_ago)
        self.engine.db.tasks.filter(pk=claimed.id).update(claimed_at=long_ago)
        return claimed

    # --- what clients do

    def claim(self, *names: str, limit: int = 1, executor_id: UUID | None = None) -> list[ClaimedTask]:
        request = ClaimRequest(executor_id=executor_id or uuid4(), queues=names, limit=limit)
        claimed = self.engine.claims.claim(request)
        self._record_claims(request, claimed)
        return claimed

    def _record_claims(self, request: ClaimRequest, claimed: Sequence[ClaimedTask]) -> None:
        claims = [(task.id, task.claim_number) for task in claimed]
        self.records.claims += claims
        self._executors |= dict.fromkeys(claims, request.executor_id)

    def read(self, task_id: UUID) -> list[StoredMessage]:
        messages = self.engine.messages.read_messages([task_id]).get(task_id, [])
        self.records.keys_read |= {message.id: message_key(message) for message in messages}
        return messages

    def poll(self, *names: str, decide: Decide, wait: bool = False) -> None:
        """Claim one task, read its messages and commit the decision. Do nothing if no task is READY."""
        for claimed in self.claim(*names):
            self.commit(decide(claimed, self.read(claimed.id)), wait=wait)

    def commit_and_claim(self, result: Outcome, *names: str) -> list[ClaimedTask]:
        """Commit, admit and claim in one transaction."""
        request = ClaimRequest(executor_id=self._executors[result.task_id, result.claim_number], queues=names, limit=1)
        answer, claimed = self.engine.commit_and_claim([result], request, should_admit=result.may_unblock_others)
        # The commit precedes the claims of the same transaction.
        again = self._record_result([result], answer)
        self._record_claims(request, claimed)
        self._wake(answer)
        if again:
            rest(ClientState.AFTER_COMMIT)
            self.commit(*again)
        return claimed

    def commit(self, *results: Outcome, wait: bool = False) -> None:
        """Commit as an executor does. Repeat the outcomes whose rows were locked by another transaction."""
        left: Sequence[Outcome] = results
        # A second retry runs the same statements as the first. It needs no order of its own.
        states = chain([ClientState.AFTER_COMMIT], repeat(ClientState.LAST))
        while left:
            answer = self.engine.commits.commit(left, wait=wait)
            left = self._record_result(left, answer)
            self._wake(answer)
            if answer.unknown:
                rest(next(states))

    def _wake(self, answer: CommitResult) -> None:
        if answer.wake:
            self.engine.messages.wake(answer.wake)

    def _record_result(self, results: Sequence[Outcome], answer: CommitResult) -> list[Outcome]:
        """Record the answer to a commit. Return the outcomes to commit again."""
        again = []
        for result in results:
            if result.task_id in answer.done:
                self._record_done(result, answer.done[result.task_id])
            elif result.task_id in answer.unknown:
                again.append(result)
            elif isinstance(error := answer.refused.get(result.task_id), (TaskFinished, TaskNotFound)):
                self.records.refused += sent(result)
                again.append(retry_outcome(result))
            elif error is not None:
                raise error
        return again

    def _record_done(self, result: Outcome, entered: Status) -> None:
        claim = (result.task_id, result.claim_number)
        if claim != max(recorded for recorded in self.records.claims if recorded[0] == result.task_id):
            self.records.stale_commits.append(claim)
        self._record_ending(claim, "committed" if result.has_succeeded else "released")
        self.records.consumed += result.effects.consumed
        self.records.left_unread[result.task_id] = set(result.effects.unread)
        self.records.accepted += sent(result)
        self.records.receivers |= {("message", json.loads(sent.body)): sent.task_id for sent in result.effects.send}
        if entered in FINAL:
            self._record_finished(result.task_id, entered)
            if result.effects.cancel_children:
                self.records.cancelled_trees.add(result.task_id)
        if entered is not Status.CANCELLED:
            self.names |= {child.id: "spawned" for child in result.effects.spawn}

    def _record_finished(self, task_id: UUID, status: Status) -> None:
        self.records.ended[task_id] += 1
        self.records.ended_unsuccessfully[task_id] += status in UNSUCCESSFUL

    def commit_in_function(self, claimed: ClaimedTask, result: Outcome) -> None:
        """
        Commit as a worker thread does, whose function runs in the transaction of the commit, which locks the task.

        If another transaction holds a required row, roll back and start again.
        """
        for state in chain([ClientState.AFTER_COMMIT], repeat(ClientState.LAST)):
            with transaction.atomic():
                assert self.engine.claims.lock_claim(claimed)
                answer = self.engine.commits.commit([result], wait=True)
                if answer.unknown:
                    transaction.set_rollback(True)
            again = self._record_result([result], answer)
            self._wake(answer)
            if not answer.unknown:
                self.commit(*again)  # a poll that failed is committed without the function
                return
            rest(state)

    def send(self, task_id: UUID, *bodies: str, dedupe_key: str | None = None) -> None:
        """Send in a transaction and wake the receiver after the commit, as a view does."""
        if self.insert(task_id, *bodies, dedupe_key=dedupe_key):
            self.engine.messages.wake([task_id])

    def insert(self, task_id: UUID, *bodies: str, dedupe_key: str | None = None) -> bool:
        """Send in a transaction. Return whether the receiver accepted the messages."""
        messages = [NewMessage(task_id=task_id, body=json.dumps(body), dedupe_key=dedupe_key) for body in bodies]
        keys: list[MessageKey] = [("message", body) for body in bodies]
        self.records.receivers |= dict.fromkeys(keys, task_id)
        try:
            with transaction.atomic():
                self.engine.messages.send(messages)
        except (TaskFinished, TaskNotFound):
            self.records.refused += keys
            return False
        self.records.accepted += keys
        return True

    def send_and_roll_back(self, task_id: UUID, body: str, dedupe_key: str | None = None) -> None:
        """Send in a transaction that is rolled back."""
        with transaction.atomic():
            self.engine.messages.send([NewMessage(task_id=task_id, body=json.dumps(body), dedupe_key=dedupe_key)])
            transaction.set_rollback(True)

    def cancel(self, task_id: UUID, *, tree: bool = False, wait: bool = False) -> None:
        """Cancel as api.cancel() does: retry busy tasks. With wait, wait for locks as the engine's own callers do."""
        if tree:
            self.records.cancelled_trees.add(task_id)
        ids: Collection[UUID] = [task_id]
        states = chain([ClientState.AFTER_COMMIT], repeat(ClientState.LAST))
        while ids:
            with transaction.atomic():
                report = self.engine.tasks.cancel(ids, tree=tree, wait=wait)
            if report.cancelled and not tree:
                self._record_finished(task_id, Status.CANCELLED)
            if report.parents:
                self.engine.messages.wake(report.parents)
            if ids := report.busy:
                rest(next(states))

    def requeue(self, task_id: UUID) -> None:
        with transaction.atomic():
            requeued = self.engine.tasks.requeue([task_id]).requeued
        self.records.requeued[task_id] += requeued

    def prune(self) -> None:
        pruned = self.engine.tasks.prune()
        self.records.pruned += pruned

    def enqueue(self, name: str, key: str) -> None:
        """Enqueue a task with a key."""
        pk = new_id()
        with transaction.atomic():
            (answer,) = self.engine.enqueues.enqueue([NewTask(id=pk, task_type="tests.noop", queue_name=name, key=key)])
        if answer.created:
            self.names[pk] = name
        self.records.key_owners.append(answer.id)

    def submit(self, name: str, *keys: str) -> None:
        """Enqueue tasks with idempotency keys and read the existing ones, as an HTTP submission does."""
        rows = [NewTask(id=new_id(), task_type="tests.noop", queue_name=name, idempotency_key=key) for key in keys]
        with self.engine.db.transaction():
            answers = self.engine.enqueues.enqueue_once(rows)
            existing = self.engine.db.tasks.filter(pk__in={answer.id for answer in answers if not answer.created})
            list(existing.values_list("pk", "idempotency_digest"))
        self.names |= {answer.id: name for answer in answers if answer.created}
        self.records.submitted += [(key, answer.id, answer.created) for key, answer in zip(keys, answers, strict=True)]

    def heartbeat_confirms(self, claimed: ClaimedTask) -> bool:
        """Send a heartbeat of the claim's executor. Return whether the answer contains the claim."""
        executor_id = self._executors[claimed.id, claimed.claim_number]
        held = self.engine.executors.heartbeat(executor_info(executor_id))
        self.records.confirmed_executors.add(executor_id)
        return any((claim.id, claim.claim_number) == (claimed.id, claimed.claim_number) for claim in held or ())

    def rescue(self) -> None:
        before, confirmed = dict(self.records.claims), set(self.records.confirmed_executors)
        for rescued in self.engine.executors.rescue():
            if rescued.executor_id in confirmed:
                self.records.lost_claims.append((rescued.id, before[rescued.id]))
            self._record_ending((rescued.id, before[rescued.id]), "rescued")
            if rescued.status in FINAL:
                self._record_finished(rescued.id, rescued.status)

    def _record_ending(self, claim: Claim, how: str) -> None:
        self.records.endings.setdefault(claim, []).append(how)


def executor_info(executor_id: UUID) -> ExecutorInfo:
    return ExecutorInfo(executor_id=executor_id, name="", host="", pid=1, versions={}, queues=[], slots=1)


def message_key(message: StoredMessage) -> MessageKey:
    if message.child_status == Status.READY or (message.child_status is None and (message.body or "").startswith("{")):
        return ("batch", message.id)
    return (
        ("message", json.loads(message.body or "null"))
        if message.child_status is None
        else ("child", message.sender_id)
    )


def outcome(claimed: ClaimedTask, status: Status, messages: Sequence[StoredMessage] = (), **changes: Any) -> Outcome:
    """Return the outcome of a successful poll that consumes these messages and stores its claim number as state."""
    effects = Effects(consumed=[message.id for message in messages]) if messages else NO_EFFECTS
    values: dict[str, Any] = {
        "task_id": claimed.id,
        "claim_number": claimed.claim_number,
        "status": status,
        "attempts": 0,
        "parent_id": claimed.parent_id,
        "has_succeeded": True,
        "inner_state": str(claimed.claim_number),
        "effects": effects,
        "may_unblock_others": claimed.may_unblock_others,
        "begun_seconds": None if claimed.rate_key is None else 0.0,
    }
    return Outcome(**values | changes)


def suspend(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.SUSPENDED, messages)


def sleep(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.SUSPENDED, messages, wake_after_seconds=3600.0)


def succeed(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.SUCCESSFUL, messages, return_value="1")


def return_none(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    """Return the outcome of a function without a result, which has a statement of its own."""
    plain: dict[str, Any] = {"inner_state": None, "worker_id": "worker", "run_seconds": 0.0, "return_value": "null"}
    return outcome(claimed, Status.SUCCESSFUL, **plain)


def give_up(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    return outcome(claimed, Status.FAILED, messages, error='"given up"')


def succeed_and_cancel_children(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    effects = Effects(consumed=[message.id for message in messages], cancel_children=True)
    return outcome(claimed, Status.SUCCESSFUL, return_value="1", effects=effects)


def spawn(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    """Create a child and wait for it."""
    child = NewTask(id=new_id(), task_type="tests.noop", queue_name="spawned")
    effects = Effects(consumed=[message.id for message in messages], spawn=[child])
    return outcome(claimed, Status.SUSPENDED, effects=effects)


def leave_unread(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    """Leave the messages unread and wait for another one."""
    result = outcome(claimed, Status.SUSPENDED, wake_after_seconds=3600.0)
    return replace(result, effects=Effects(unread=[message.id for message in messages]))


def retry(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    return retry_outcome(outcome(claimed, Status.SCHEDULED))


def retry_outcome(result: Outcome) -> Outcome:
    """Return the outcome of a failed poll: the task is retried, state and inbox stay as they are."""
    return Outcome(
        task_id=result.task_id,
        claim_number=result.claim_number,
        parent_id=result.parent_id,
        status=Status.SCHEDULED,
        wake_after_seconds=3600.0,
        attempts=result.attempts + 1,
        may_unblock_others=result.may_unblock_others,
        begun_seconds=result.begun_seconds,
    )


def sent(result: Outcome) -> list[MessageKey]:
    return [("message", json.loads(message.body)) for message in result.effects.send]


def and_send(decide: Decide, receiver: UUID, body: str) -> Decide:
    """Return a decision that also sends a message."""

    def decide_and_tell(claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
        result = decide(claimed, messages)
        message = NewMessage(task_id=receiver, sender_id=claimed.id, body=json.dumps(f"{body}-{claimed.claim_number}"))
        return replace(result, effects=Effects(consumed=result.effects.consumed, send=[message]))

    return decide_and_tell
