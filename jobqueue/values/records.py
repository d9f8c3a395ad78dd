"""
Values between the executor and the engine: claimed tasks, outcomes, messages, reports.

Values of every task are a msgspec Struct: it takes 0.4 us to build, a frozen dataclass of 26 fields 5 us. One call
writes a batch of them as JSON. gc=False: they are never in a cycle, and the garbage collector took a quarter of the
time of enqueue_many().
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from msgspec import Struct

INTERNAL_PREFIX = "jobqueue."  # of the names of tasks that are part of this package


def is_internal(task_type: str) -> bool:
    """Return whether a task is part of this package. People can start it by its own page only."""
    return task_type.startswith(INTERNAL_PREFIX)


class Status(StrEnum):
    """The state of a task."""

    READY = "READY"
    BLOCKED = "BLOCKED"
    SCHEDULED = "SCHEDULED"
    AWAITING_CODE = "AWAITING_CODE"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


LIVE = (
    Status.READY,
    Status.BLOCKED,
    Status.SCHEDULED,
    Status.AWAITING_CODE,
    Status.RUNNING,
    Status.SUSPENDED,
)
WAITING = (Status.SCHEDULED, Status.SUSPENDED)  # for a time, or for a message
FINAL = (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED)


class PoolName(StrEnum):
    """Where an executor runs a task: in a worker thread, or on the event loop (`async def`)."""

    THREADS = "threads"
    ASYNC = "async"

    @classmethod
    def of_row(cls, text: str) -> PoolName:
        """Return the pool of a row. A pool that only newer code knows counts as worker threads."""
        return cls(text) if text in {*cls} else cls.THREADS


class LimitKind(StrEnum):
    """The kind of limit that a BLOCKED task waits for."""

    CONCURRENCY = "concurrency"
    RATE = "rate"


class NewTask(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    A valid row to enqueue. JSON columns are JSON text. tags: None without any.

    wake_at, wake_after_seconds: the earliest start, as a time or from the database's now; at most one of them.
    key: unique among live tasks of the backend. idempotency_key: unique among all its tasks until they are pruned;
    only enqueue_once() uses it. idempotency_digest: of the request with that key.
    concurrency_key, rate_key: of limits.key_of(). rate_limit starts are allowed in rate_seconds.
    on_conflict: if the unique key is taken, "keep" its task, "replace" that task, or "raise" DuplicateKey.
    unique_for_seconds: how long other rows with unique_for_seconds cannot take the key, also after the end of this one.
    max_wait_seconds: for "replace" with wake_after_seconds, the longest time from the first call to the start.
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
    tags: str | None = None
    key: str | None = None
    idempotency_key: str | None = None
    idempotency_digest: str | None = None
    parent_id: UUID | None = None
    schedule_id: int | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    hold_while_retrying: bool = False
    rate_key: str | None = None
    rate_limit: int | None = None
    rate_seconds: float | None = None
    on_conflict: str = "keep"
    unique_for_seconds: float | None = None
    max_wait_seconds: float | None = None


class Enqueued(Struct, frozen=True, gc=False):
    """Answer to one NewTask. If another task holds one of its keys, `created` is False and `id` is of that task."""

    id: UUID
    enqueued_at: datetime
    status: Status
    created: bool


class ClaimedTask(Struct, frozen=True, gc=False):
    """
    A RUNNING task of an executor, with its fields in the order of claim.sql.

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
    concurrency_key: str | None = None
    rate_key: str | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit. Then other tasks may wait for its end."""
        return self.concurrency_key is not None or self.rate_key is not None

    may_unblock = is_limited


class NewMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A message to a task. `body` is JSON text; `child_status` is the final status of a child that ended.

    is_droppable: if the receiver has ended, the message is dropped and raises no error.
    """

    task_id: UUID
    body: str
    sender_id: UUID | None = None
    child_status: Status | None = None
    dedupe_key: str | None = None
    is_droppable: bool = False


class StoredMessage(Struct, frozen=True):
    """
    One unread message of a claimed task. `body` is raw JSON text.

    child_status: the value of the column, not decoded.
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
    Effects of a poll besides the change of its own row.

    consumed: the ids of messages that it read and consumed. unread: the ids of messages that it read and left. They do
    not make a SUSPENDED task READY before its wake_at. cancel_children: if the task ends, cancel its live descendants.
    """

    consumed: Sequence[int] = ()
    unread: Sequence[int] = ()
    spawn: Sequence[NewTask] = ()
    send: Sequence[NewMessage] = ()
    cancel_children: bool = False


NO_EFFECTS = Effects()


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The result of one attempt of a claimed task. The engine performs it.

    status: the state to enter. READY polls again now. SUSPENDED becomes READY if there are unread messages. A state
    that is not final becomes CANCELLED if a cancel was requested.
    wake_after_seconds, wake_at: for SCHEDULED and SUSPENDED, seconds from the commit, or a time. For AWAITING_CODE,
    the first one is the longest wait.
    recheck_seconds: wake earlier, to read the messages again that were left. It does not change timeout_at.
    unread_polls: polls in a row that left messages unread. stale_polls: polls in a row that ended with Stale.
    attempts: the new value of the column. has_succeeded: add 1 to `polls`.
    keeps_rank: for READY, keep the rank (a release) instead of starting at the end of the order.
    worker_id: the executor to append to `worker_ids`; None if no attempt started. run_seconds: of the body.
    return_value, error, inner_state, metadata: JSON text; None leaves the column unchanged.
    cause: the fingerprint of the error, which groups failures. history: a line to append to the column.
    decided: the state that the engine chose after it read the row and its messages.
    may_unblock: as of the ClaimedTask. The commit then inserts admission requests.
    begun_seconds: since the body of a task with a rate has begun; None if it has not. The rate counts this start.
    """

    task_id: UUID
    claim_number: int
    status: Status
    attempts: int
    parent_id: UUID | None = None
    wake_after_seconds: float | None = None
    wake_at: datetime | None = None
    recheck_seconds: float | None = None
    unread_polls: int = 0
    stale_polls: int = 0
    has_succeeded: bool = False
    keeps_rank: bool = False
    worker_id: str | None = None
    run_seconds: float | None = None
    return_value: str | None = None
    error: str | None = None
    cause: str | None = None
    history: str | None = None
    inner_state: str | None = None
    metadata: str | None = None
    decided: Status | None = None
    may_unblock: bool = False
    begun_seconds: float | None = None
    effects: Effects = NO_EFFECTS

    @property
    def is_plain(self) -> bool:
        """Whether it changes only its own row, so that one statement can commit it."""
        return (
            self.parent_id is None
            and self.effects is NO_EFFECTS
            and self.status is not Status.SUSPENDED
            and self.status is not Status.AWAITING_CODE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """
    The results of a batch of outcomes, by task id.

    done: the status that each task entered. lost: another claim holds the task, or it has ended or is deleted; the
    outcome is dropped. unknown: another session has locked the row; commit again. refused: the database refused the
    values, with this error. waiting: other sessions have locked what it writes; commit it again, later and alone. wake:
    receivers that the caller wakes. dropped: by the committed task, the number of
    messages to a parent that had ended.
    """

    done: dict[UUID, Status] = field(default_factory=dict)
    lost: frozenset[UUID] = frozenset()
    unknown: frozenset[UUID] = frozenset()
    refused: dict[UUID, Exception] = field(default_factory=dict)
    waiting: dict[UUID, Exception] = field(default_factory=dict)
    wake: frozenset[UUID] = frozenset()
    dropped: dict[UUID, int] = field(default_factory=dict)


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    """The progress of a claimed task's body: how much is done, of which total if it is known, and a note."""

    task_id: UUID
    claim_number: int
    done: float
    total: float | None = None
    note: str = ""


class Start(Struct, frozen=True, gc=False):
    """A body of a task with a rate that still runs. begun_seconds: since it has begun."""

    task_id: UUID
    claim_number: int
    begun_seconds: float


class OwnedTask(Struct, frozen=True):
    """One task that an executor holds, as its heartbeat reads it."""

    id: UUID
    claim_number: int
    is_cancel_requested: bool


class Rescued(Struct, frozen=True):
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
    A request for up to `limit` tasks of these queues.

    pool_limits: the maximum for each pool; a pool without one is limited by `limit` alone. max_per_queue: the maximum
    for some queues. limited: the queues that are known to have a max_running. The claim skips other queues with a
    max_running. free_slots: for each pool, the maximum for a limited queue.
    """

    executor_id: UUID
    queues: Sequence[str]
    limit: int
    pool_limits: Mapping[PoolName, int] = field(default_factory=dict)
    max_per_queue: Mapping[str, int] = field(default_factory=dict)
    limited: Collection[str] = ()
    free_slots: Mapping[PoolName, int] = field(default_factory=dict)

    @property
    def limits(self) -> dict[PoolName, int]:
        """Return the maximum for each pool, without pools of maximum 0."""
        limits = {pool: min(self.limit, self.pool_limits.get(pool, self.limit)) for pool in PoolName}
        return {pool: limit for pool, limit in limits.items() if limit > 0}

    @property
    def is_empty(self) -> bool:
        return self.limit <= 0 or not self.queues


class ClaimedBatch(list[ClaimedTask]):
    """
    The tasks of a claim.

    locked_queues: limited queues that it skipped, because another claim has locked them. is_truncated: it stopped its
    search in many queues before it reached the limit; there may be more tasks. admitted: what was admitted just
    before the claim. returned: how many AWAITING_CODE tasks became READY just before it.
    """

    locked_queues: frozenset[str] = frozenset()
    is_truncated: bool = False
    admitted: Admitted | None = None
    returned: int = 0


class PendingWork(Struct, frozen=True):
    """
    The work that maintenance may find. The portable engine searches for the next wake_at and the next tick only.

    next_wake_seconds: until the next wake_at, or None. next_tick_seconds: until the next tick of a schedule is due, or
    None. next_admission_seconds: until the next admission request is due, or None. has_waiting_tick: a tick waits for a
    task of its schedule. has_running: RUNNING tasks, perhaps of a lost executor. has_messages: unread messages, perhaps
    of SUSPENDED tasks. has_command: for this executor. has_isolated: READY tasks that must run alone.
    has_awaiting_code: AWAITING_CODE tasks, perhaps for the code of this executor.
    """

    next_wake_seconds: float | None
    next_tick_seconds: float | None = None
    next_admission_seconds: float | None = None
    has_waiting_tick: bool = True
    has_running: bool = True
    has_messages: bool = True
    has_command: bool = True
    has_isolated: bool = True
    has_awaiting_code: bool = True


class QueueLatency(Struct, frozen=True):
    """
    A queue in use. is_served: a live executor serves it.

    latency_seconds: how long a task has been READY or due; 0 if all its tasks are RUNNING.
    """

    queue_name: str
    latency_seconds: float
    is_paused: bool
    is_served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReport:
    """
    What cancel() did, as numbers and ids of tasks.

    cancelled: ended at once. requested: they run, and were asked to stop. skipped:
    unknown, or ended before. busy: not changed, because another transaction has locked them; cancel them again after
    its end. not_allowed: live tasks that `may` did not allow.
    """

    cancelled: int = 0
    requested: int = 0
    skipped: int = 0
    parents: frozenset[UUID] = field(default=frozenset(), repr=False)  # the caller wakes them after the commit
    busy: frozenset[UUID] = frozenset()
    not_allowed: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueReport:
    """
    What requeue() did, as numbers and ids of tasks.

    requeued: READY again. key_taken: not changed, because a live task has their key. skipped: unknown, not FAILED or
    CANCELLED, or a bulk action, which people start again from the list. busy: not changed, because another transaction
    has locked them; requeue them again after its end.
    """

    requeued: int = 0
    key_taken: int = 0
    skipped: int = 0
    busy: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport:
    """
    What run_now(), discard() or delete() did.

    changed: how many tasks. skipped: unknown, or in a state that the call does not change. busy: not changed, because
    another transaction has locked them; try again after its end.
    """

    changed: int = 0
    skipped: int = 0
    busy: frozenset[UUID] = frozenset()


class Command(StrEnum):
    """A request to an executor: claim no more tasks, claim again, or stop gracefully."""

    PAUSE = "PAUSE"
    RESUME = "RESUME"
    STOP = "STOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInfo:
    """
    The values that an executor writes about itself.

    waiting_for_connections: async tasks, at most, since its last heartbeat. task_types: those that its code declares.
    Each heartbeat writes this number and the state, the first one also the others.
    """

    executor_id: UUID
    name: str
    host: str
    pid: int
    versions: Mapping[str, str]
    queues: Sequence[str]
    slots: int
    async_slots: int = 0
    waiting_for_connections: int = 0
    state: str = "RUNNING"
    queue_limits: Mapping[str, int] = field(default_factory=dict)
    task_types: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredSchedules:
    """
    What happened to due ticks of schedules.

    count: schedules with due ticks. tasks: the new tasks, with the moment when each was enqueued. skipped: ticks.
    has_cancelled: whether running tasks are to be cancelled.
    """

    count: int = 0
    tasks: Sequence[tuple[NewTask, datetime]] = ()
    skipped: int = 0
    has_cancelled: bool = False

    @property
    def enqueued(self) -> int:
        return len(self.tasks)

    @property
    def queues(self) -> frozenset[str]:
        """The queues with new READY tasks."""
        return frozenset(task.queue_name for task, _ in self.tasks)

    def __add__(self, other: FiredSchedules) -> FiredSchedules:
        return FiredSchedules(
            count=self.count + other.count,
            tasks=[*self.tasks, *other.tasks],
            skipped=self.skipped + other.skipped,
            has_cancelled=self.has_cancelled or other.has_cancelled,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """
    What admit() has done.

    queues: those of the admitted tasks, and how many tasks. looked_at: the number of keys that it has looked at.
    looks_again: whether it has left or inserted requests.
    """

    queues: Mapping[str, int] = field(default_factory=dict)
    looked_at: int = 0
    looks_again: bool = False

    def __add__(self, other: Admitted) -> Admitted:
        return Admitted(
            queues=Counter(self.queues) + Counter(other.queues),
            looked_at=self.looked_at + other.looked_at,
            looks_again=self.looks_again or other.looks_again,
        )


def release_outcome(claimed: ClaimedTask) -> Outcome:
    """Return the outcome that releases a claimed task unchanged."""
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        status=Status.READY,
        attempts=claimed.attempts,
        parent_id=claimed.parent_id,
        unread_polls=claimed.unread_polls,
        stale_polls=claimed.stale_polls,
        keeps_rank=True,
        may_unblock=claimed.may_unblock,
    )
