"""What polls lead to: drawn by chance, as good and bad as users' bodies are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from jobqueue.records import ClaimedTask, Effects, NewMessage, NewTask, Outcome, Status, StoredMessage
from jobqueue.serialization.ids import new_id
from verification.interleavings.world import outcome

QUEUES = ("a", "b", "c")
MOST_ATTEMPTS = 3
RESTS_SECONDS = (5.0, 25.0, 65.0)  # never a multiple of what the clock is moved by: what is due does not hang on chance
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
    chance: Random,
    claimed: ClaimedTask,
    mail: Sequence[StoredMessage],
    others: Sequence[UUID],
    may_grow: bool,
    worker: UUID,
) -> Outcome:
    """Give what a poll of this task leads to. others: whom it may write to."""
    (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
    if kind == "spawn" and not may_grow:
        kind = "suspend"
    return replace(make(kind, chance, claimed, mail, others), worker_id=str(worker), run_seconds=0.02)


def make(
    kind: str, chance: Random, claimed: ClaimedTask, mail: Sequence[StoredMessage], others: Sequence[UUID]
) -> Outcome:
    rest = chance.choice(RESTS_SECONDS)
    match kind:
        case "done":
            return outcome(claimed, Status.SUCCESSFUL, mail, return_value="1")
        case "fail":
            return failing(claimed, rest)
        case "suspend":
            return outcome(claimed, Status.SUSPENDED, mail)
        case "sleep":
            return outcome(claimed, Status.SUSPENDED, mail, wake_after_seconds=rest)
        case "leave":
            return leaving(chance, claimed, mail)
        case "again":
            return outcome(claimed, Status.READY, mail)
        case "give_up":
            return outcome(claimed, Status.FAILED, mail, error=ERROR, attempts=claimed.attempts + 1)
    effects = Effects(consumed=[letter.id for letter in mail])
    match kind:
        case "spawn":
            born = [newborn(chance) for _ in range(chance.randint(1, 2))]
            status = chance.choice([Status.SUSPENDED, Status.SUSPENDED, Status.SUCCESSFUL])
            effects = Effects(consumed=effects.consumed, spawn=born)
        case "tell":
            receivers = chance.sample(others, min(len(others), chance.randint(1, 2)))
            text = f"{claimed.id.hex[-12:]}-{claimed.claim_number}"
            told = [message(receiver, f"{text}-{number}", claimed.id) for number, receiver in enumerate(receivers)]
            status = chance.choice([Status.SUSPENDED, Status.READY, Status.SUCCESSFUL])
            effects = Effects(consumed=effects.consumed, send=told)
        case _:
            status = chance.choice([Status.SUCCESSFUL, Status.FAILED])
            effects = Effects(consumed=effects.consumed, cancel_children=True)
    return outcome(claimed, status, effects=effects, return_value="1" if status is Status.SUCCESSFUL else None)


def failing(claimed: ClaimedTask, rest: float) -> Outcome:
    """Try again later, or no more."""
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
    )


def leaving(chance: Random, claimed: ClaimedTask, mail: Sequence[StoredMessage]) -> Outcome:
    """Take some of the mail, and leave the rest for later."""
    taken = chance.randint(0, len(mail))
    ids = [letter.id for letter in mail]
    wait: dict[str, Any] = (
        {"look_after_seconds": 5.0, "unread_polls": claimed.unread_polls + 1} if ids[taken:] and not taken else {}
    )
    effects = Effects(consumed=ids[:taken], left=ids[taken:])
    status = Status.READY if ids[taken:] and taken else Status.SUSPENDED
    return outcome(claimed, status, effects=effects, **wait)


def newborn(chance: Random) -> NewTask:
    return NewTask(id=new_id(), task_type="tests.noop", queue_name=chance.choice(QUEUES), max_attempts=MOST_ATTEMPTS)


def message(receiver: UUID, body: str, sender: UUID | None = None, dedupe_key: str | None = None) -> NewMessage:
    return NewMessage(task_id=receiver, sender_id=sender, body=json.dumps(body), dedupe_key=dedupe_key)


def last(claimed: ClaimedTask, mail: Sequence[StoredMessage], worker: UUID) -> Outcome:
    """End, when all are to come to rest."""
    return replace(outcome(claimed, Status.SUCCESSFUL, mail, return_value="1"), worker_id=str(worker), run_seconds=0.02)
