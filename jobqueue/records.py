"""
What travels between the executor and the engine: claimed tasks in, outcomes out.

What is made once per task is a msgspec Struct: a frozen dataclass of 26 fields takes 5 us to build, this 0.4,
and whole batches of them are written as JSON at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from msgspec import Struct


class Status(StrEnum):
    """State of a task; the picture is in docs/design.md, "States"."""

    READY = "READY"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


LIVE = (Status.READY, Status.SCHEDULED, Status.RUNNING, Status.SUSPENDED)
WAITING = (Status.SCHEDULED, Status.SUSPENDED)  # for a moment, or for mail
FINAL = (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED)


class PoolName(StrEnum):
    """Where an executor runs a task: in a worker thread, or on the event loop (`async def`)."""

    THREADS = "threads"
    ASYNC = "async"


class NewTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A row to be enqueued. All checks are done; JSON columns are JSON text.

    wake_at and wake_after_seconds: not before; one of them or neither. The second counts from the
    database's now. key: unique among live tasks of the backend. idempotency_key: among all its tasks, ended ones
    too, until they are pruned; only enqueue_once() uses it. idempotency_digest: of the request with that key.
    """

    id: UUID
    task_type: str
    queue_name: str = "default"
    pool: PoolName = PoolName.THREADS
    priority: int = 0
    args: str = "[]"
    kwargs: str = "{}"
    wake_at: datetime | None = None
    wake_after_seconds: float | None = None
    expires_at: datetime | None = None
    expires_after_seconds: float | None = None
    max_attempts: int = 1
    options: str = "{}"
    metadata: str = "{}"
    key: str | None = None
    idempotency_key: str | None = None
    idempotency_digest: str | None = None
    parent_id: UUID | None = None


class Enqueued(Struct, frozen=True):
    """Answer to one NewTask. `created` is False where another task holds one of its keys: `id` is that task's."""

    id: UUID
    enqueued_at: datetime
    status: Status
    created: bool


class ClaimedTask(Struct, frozen=True):
    """
    A RUNNING task in the hands of an executor, in the order of claim.sql's answer.

    JSON columns are raw text, so that one bad row fails alone.
    """

    id: UUID
    task_type: str
    queue_name: str
    priority: int
    args: str
    kwargs: str
    inner_state: str | None
    options: str
    metadata: str
    errors: str
    worker_ids: str
    parent_id: UUID | None
    key: str | None
    claim_number: int
    attempts: int
    max_attempts: int
    polls: int
    executor_losses: int
    rank: datetime
    enqueued_at: datetime
    started_at: datetime | None
    claimed_at: datetime
    wait_seconds: float
    is_expired: bool
    unread_polls: int = 0
    stale_polls: int = 0
    timed_out: bool = False
    timeout_at: datetime | None = None
    pool: str = PoolName.THREADS


class NewMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A message to a task. `body` is JSON text; `child_status` is the final status of a child that ended.

    is_droppable: dropped instead of refused when its receiver has ended.
    """

    task_id: UUID
    body: str
    sender_id: UUID | None = None
    child_status: Status | None = None
    dedupe_key: str | None = None
    is_droppable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """
    One unread message of a claimed task. `body` is raw JSON text.

    child_status: the value of the column; the reader of the message decodes it.
    """

    id: int
    task_id: UUID
    sender_id: UUID | None
    child_status: str | None
    body: str | None
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """
    What a poll asks for besides the change of its own row.

    consumed: the exact ids of messages that were read and taken. left: of those that were read and
    are to wait; they alone do not make a SUSPENDED task READY again, which its alarm will.
    cancel_children: of a task that ends, its living children end with it.
    """

    consumed: Sequence[int] = ()
    left: Sequence[int] = ()
    spawn: Sequence[NewTask] = ()
    send: Sequence[NewMessage] = ()
    cancel_children: bool = False


NO_EFFECTS = Effects()


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What one poll of a claimed task leads to; the engine performs it.

    status: the state to enter. READY means poll again now. SUSPENDED becomes READY where unread
    mail waits; READY, SCHEDULED and SUSPENDED become CANCELLED where a cancel was requested.
    wake_after_seconds, wake_at: for SCHEDULED and SUSPENDED, counted from the commit, or a moment.
    look_after_seconds: wake before that already, to look again at mail that was left; it moves no alarm.
    unread_polls: polls in a row that left messages unread. stale_polls: polls in a row that ended with Stale.
    attempts: the new value of the column. is_good_poll adds one to `polls`.
    keeps_rank: for READY, whether it goes back to its place in the order (a release) or to the end.
    worker_id: appended to `worker_ids` when this poll was a started attempt, else None.
    run_seconds: how long the body of that attempt took.
    return_value, error, inner_state: JSON text; None leaves the column as it is.
    decided: the state that is entered after all; the engine's own, once it has looked at the row and its mail.
    """

    task_id: UUID
    claim_number: int
    status: Status
    attempts: int
    parent_id: UUID | None = None
    wake_after_seconds: float | None = None
    wake_at: datetime | None = None
    look_after_seconds: float | None = None
    unread_polls: int = 0
    stale_polls: int = 0
    is_good_poll: bool = False
    keeps_rank: bool = False
    worker_id: str | None = None
    run_seconds: float | None = None
    return_value: str | None = None
    error: str | None = None
    inner_state: str | None = None
    metadata: str | None = None
    decided: Status | None = None
    effects: Effects = NO_EFFECTS

    @property
    def is_plain(self) -> bool:
        """Whether it touches nothing but its own row, so that one statement can commit it."""
        return self.parent_id is None and self.effects is NO_EFFECTS and self.status is not Status.SUSPENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """
    What became of a batch of outcomes, by task id.

    done: the status that each task entered. lost: locked and held by another claim, or ended, or
    gone; the outcome is dropped. unknown: another session has locked the row; commit again.
    refused: the database refused the values; the error says why. wake: receivers still to be woken.
    dropped: how many messages went to a parent that had ended, by the task whose commit it was.
    """

    done: dict[UUID, Status] = field(default_factory=dict)
    lost: frozenset[UUID] = frozenset()
    unknown: frozenset[UUID] = frozenset()
    refused: dict[UUID, Exception] = field(default_factory=dict)
    wake: frozenset[UUID] = frozenset()
    dropped: dict[UUID, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTask:
    """One task that an executor holds, as its heartbeat sees it."""

    id: UUID
    claim_number: int
    is_cancel_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """A task taken from a lost executor. `status` is READY, or FAILED at the limit of losses."""

    id: UUID
    queue_name: str
    task_type: str
    status: Status
    executor_losses: int
    executor_id: UUID | None
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """
    What an executor asks a claim for: up to `limit` tasks of these queues.

    pool_limits: the maximum for each pool; a pool without one is limited by `limit` alone.
    most: the maximum for some of the queues. limited: those of the queues that are known to have a max_running. The
    claim skips a queue that has one and is not named here. free_slots: for each pool, the maximum for a limited queue.
    """

    executor_id: UUID
    queues: Sequence[str]
    limit: int
    pool_limits: Mapping[PoolName, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    limited: Collection[str] = ()
    free_slots: Mapping[PoolName, int] = field(default_factory=dict)

    @property
    def limits(self) -> dict[PoolName, int]:
        """Return the maximum for each pool that is asked for anything."""
        limits = {pool: min(self.limit, self.pool_limits.get(pool, self.limit)) for pool in PoolName}
        return {pool: limit for pool, limit in limits.items() if limit > 0}

    @property
    def is_empty(self) -> bool:
        return not (self.limits and self.queues)


class ClaimedBatch(list[ClaimedTask]):
    """
    What a claim gave.

    locked_queues: limited queues that were skipped, because another claim has locked them. is_truncated: the claim did
    not search deep enough into its many queues to find the limit; there may be more.
    """

    locked_queues: frozenset[str] = frozenset()
    is_truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeResult:
    """Answer of wake_due. next_seconds: until the next alarm, None when no alarm is set."""

    count: int
    next_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWork:
    """
    What maintenance may find to do. The portable engine cannot tell beforehand, and says everything.

    alarm_seconds: until the next alarm, None when no alarm is set. has_running: any task, perhaps at an executor that
    was lost. has_messages: unread messages, perhaps of SUSPENDED tasks. has_command: for the executor that asked.
    """

    alarm_seconds: float | None = 0.0
    has_running: bool = True
    has_messages: bool = True
    has_command: bool = True
    has_isolated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLatency:
    """
    A queue in use. is_served: an executor that serves it is alive.

    latency_seconds: that a task of it has been READY, or due; 0 where all that there is counts as RUNNING.
    """

    queue_name: str
    latency_seconds: float
    is_paused: bool
    is_served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReport:
    """
    cancelled: ended at once. requested: running; their executors read the request at the next heartbeat.
    skipped: had ended, or unknown.

    busy: left as they were, because another transaction has locked them; cancel them again when it is over.
    not_allowed: living ones that `may` did not allow.
    """

    cancelled: int = 0
    requested: int = 0
    skipped: int = 0
    parents: frozenset[UUID] = field(default=frozenset(), repr=False)  # the engine's: to be woken after the commit
    busy: frozenset[UUID] = frozenset()
    not_allowed: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueReport:
    """
    requeued: READY again. key_taken: a live task holds their key. skipped: not FAILED or CANCELLED, or unknown.

    busy: left as they were, because another transaction has locked them; requeue them again when it is over.
    """

    requeued: int = 0
    key_taken: int = 0
    skipped: int = 0
    busy: frozenset[UUID] = frozenset()


class Command(StrEnum):
    """What people ask of an executor: claim nothing more, claim again, or stop gracefully."""

    QUIET = "QUIET"
    RESUME = "RESUME"
    STOP = "STOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInfo:
    """What an executor writes of itself with each beat."""

    executor_id: UUID
    name: str
    host: str
    pid: int
    versions: Mapping[str, str]
    queues: Sequence[str]
    slots: int
    state: str = "RUNNING"
    queue_limits: Mapping[str, int] = field(default_factory=dict)


def released(claimed: ClaimedTask) -> Outcome:
    """Make the outcome that hands a claimed task back as it was."""
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        status=Status.READY,
        attempts=claimed.attempts,
        parent_id=claimed.parent_id,
        unread_polls=claimed.unread_polls,
        stale_polls=claimed.stale_polls,
        keeps_rank=True,
    )
