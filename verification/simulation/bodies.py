"""Random outcomes of polls, good and bad."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from jobqueue.values.ids import new_id
from jobqueue.values.records import ClaimedTask, Effects, NewMessage, NewTask, Outcome, StoredMessage
from jobqueue.values.states import Status
from verification.interleavings.backend import outcome

QUEUES = ("a", "b", "c")
MAX_ATTEMPTS = 3
DELAYS_SECONDS = (
    5.0,
    25.0,
    65.0,
)  # no multiple of the clock's step, so that it is certain which tasks are due
LIMITS = {"limit:one": 1, "limit:two": 2}  # by key
RATE_LIMIT, RATE_SECONDS = 2, 60.0  # of one key
ERROR = json.dumps({"exception_class_path": "ValueError"})

KINDS = {
    "done": 5,
    "fail": 4,
    "suspend": 5,
    "sleep": 3,
    "leave": 2,
    "again": 1,
    "spawn": 5,
    "tell": 3,
    "give_up": 1,
    "end_family": 1,
}


def decide(
    random: Random,
    claimed: ClaimedTask,
    messages: Sequence[StoredMessage],
    others: Sequence[UUID],
    may_grow: bool,
    worker: UUID,
) -> Outcome:
    """Return a random outcome of a poll of this task. others: tasks it may send to."""
    (kind,) = random.choices(list(KINDS), list(KINDS.values()))
    if kind == "spawn" and not may_grow:
        kind = "suspend"
    return replace(make(kind, random, claimed, messages, others), worker_id=str(worker), run_seconds=0.02)


def make(
    kind: str, random: Random, claimed: ClaimedTask, messages: Sequence[StoredMessage], others: Sequence[UUID]
) -> Outcome:
    rest = random.choice(DELAYS_SECONDS)
    match kind:
        case "done":
            return outcome(claimed, Status.SUCCESSFUL, messages, return_value="1")
        case "fail":
            return failing(claimed, rest)
        case "suspend":
            return outcome(claimed, Status.SUSPENDED, messages)
        case "sleep":
            return outcome(claimed, Status.SUSPENDED, messages, wake_after_seconds=rest)
        case "leave":
            return leaving(random, claimed, messages)
        case "again":
            return outcome(claimed, Status.READY, messages)
        case "give_up":
            return outcome(claimed, Status.FAILED, messages, error=ERROR, attempts=claimed.attempts + 1)
    effects = Effects(consumed=[message.id for message in messages])
    match kind:
        case "spawn":
            children = [newborn(random) for _ in range(random.randint(1, 2))]
            status = random.choice([Status.SUSPENDED, Status.SUSPENDED, Status.SUCCESSFUL])
            effects = Effects(consumed=effects.consumed, spawn=children)
        case "tell":
            receivers = random.sample(others, min(len(others), random.randint(1, 2)))
            text = f"{claimed.id.hex[-12:]}-{claimed.claim_number}"
            sent = [new_message(receiver, f"{text}-{number}", claimed.id) for number, receiver in enumerate(receivers)]
            status = random.choice([Status.SUSPENDED, Status.READY, Status.SUCCESSFUL])
            effects = Effects(consumed=effects.consumed, send=sent)
        case _:
            status = random.choice([Status.SUCCESSFUL, Status.FAILED])
            effects = Effects(consumed=effects.consumed, cancel_children=True)
    return outcome(claimed, status, effects=effects, return_value="1" if status is Status.SUCCESSFUL else None)


def failing(claimed: ClaimedTask, rest: float) -> Outcome:
    """Retry later, or fail after the last attempt."""
    attempts = claimed.attempts + 1
    is_last = attempts >= claimed.max_attempts
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=Status.FAILED if is_last else Status.SCHEDULED,
        wake_after_seconds=None if is_last else rest,
        attempts=attempts,
        error=ERROR,
        may_unblock_others=claimed.may_unblock_others,
    )


def leaving(random: Random, claimed: ClaimedTask, messages: Sequence[StoredMessage]) -> Outcome:
    """Consume some of the messages and leave the others unread."""
    taken = random.randint(0, len(messages))
    ids = [message.id for message in messages]
    wait: dict[str, Any] = (
        {"recheck_seconds": 5.0, "unread_polls": claimed.unread_polls + 1} if ids[taken:] and not taken else {}
    )
    effects = Effects(consumed=ids[:taken], unread=ids[taken:])
    status = Status.READY if ids[taken:] and taken else Status.SUSPENDED
    return outcome(claimed, status, effects=effects, **wait)


def newborn(random: Random) -> NewTask:
    return NewTask(id=new_id(), task_type="tests.noop", queue_name=random.choice(QUEUES), max_attempts=MAX_ATTEMPTS)


def with_limits(random: Random, new: NewTask) -> NewTask:
    """Return a task with a limit of concurrency, a rate, both or none."""
    (kind,) = random.choices(["none", "concurrency", "rate", "both"], [3, 4, 2, 1])
    if kind in ("concurrency", "both"):
        key, counts = random.choice(list(LIMITS)), random.random() < 0.5
        new = replace(new, concurrency_key=key, concurrency_limit=LIMITS[key], count_while_retrying=counts)
    if kind in ("rate", "both"):
        new = replace(new, rate_key="rate:", rate_limit=RATE_LIMIT, rate_seconds=RATE_SECONDS)
    return new


def new_message(receiver: UUID, body: str, sender: UUID | None = None, dedupe_key: str | None = None) -> NewMessage:
    return NewMessage(task_id=receiver, sender_id=sender, body=json.dumps(body), dedupe_key=dedupe_key)


def finish(claimed: ClaimedTask, messages: Sequence[StoredMessage], worker: UUID) -> Outcome:
    """End, when all are to come to rest."""
    return replace(
        outcome(claimed, Status.SUCCESSFUL, messages, return_value="1"), worker_id=str(worker), run_seconds=0.02
    )
