"""
Values between the executor and the engine: claimed tasks, outcomes, messages.

Values of every task are a msgspec Struct: it takes 0.4 us to build, a frozen dataclass of 26 fields 5 us. One call
writes a batch of them as JSON. gc=False: they are never in a cycle, and the garbage collector took a quarter of the
time of enqueue_many().
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from jobqueue.values.journal import Entry, Restart
from jobqueue.values.states import PoolName, Status

INTERNAL_PREFIX = "jobqueue."  # of the names of tasks that are part of this package
BULK_ACTION = f"{INTERNAL_PREFIX}bulk_action"  # the name of bulk actions, which are not requeued


def is_internal(task_type: str) -> bool:
    """Return whether a task is part of this package. People can start it by its own page only."""
    return task_type.startswith(INTERNAL_PREFIX)


class NewTask(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    A valid row to enqueue. JSON columns are JSON text.

    It has more than 15 attributes because each column that an enqueue writes is a field.
    """

    id: UUID  # made by the caller
    task_type: str  # the name of the task, by which executors find its code
    queue_name: str = "default"  # the queue that executors claim it from
    pool: PoolName = PoolName.THREADS  # the pool of the executor that runs its body
    priority: int = 0  # -100 to 100; a greater one starts earlier
    args: str = "[]"  # JSON array of the positional arguments
    kwargs: str = "{}"  # JSON object of the keyword arguments
    wake_at: datetime | None = None  # the earliest start; None: at once, or wake_after_seconds
    # The earliest start from the database's now; None: wake_at. At most one of the two is set.
    wake_after_seconds: float | None = None
    expires_at: datetime | None = None  # the latest start; None: it does not expire, or expires_after_seconds
    # The latest start from the database's now; None: expires_at. At most one of the two is set.
    expires_after_seconds: float | None = None
    max_attempts: int = 1  # the first one included
    options: str = "{}"  # JSON object of the options of a run, such as timeout and backoff
    metadata: str = "{}"  # JSON object that the caller reads and the queue does not
    tags: str | None = None  # JSON array of texts; None: no tags
    key: str | None = None  # the unique key among live tasks of the backend; None: none
    # of enqueue_once(), unique among all tasks of the backend until they are pruned; None: none
    idempotency_key: str | None = None
    idempotency_digest: str | None = None  # of the request with that key; None: without such a key
    parent_id: UUID | None = None  # the task that gets a message when this one ends; None: none
    schedule_id: int | None = None  # the schedule whose tick it stands for; None: none
    concurrency_key: str | None = None  # of limits.format_key(); None: no limit of this kind
    concurrency_limit: int | None = None  # how many tasks with the concurrency_key run at once; None without the key
    count_while_retrying: bool = False  # it counts for the concurrency limit also while it waits for a retry
    rate_key: str | None = None  # of limits.format_key(); None: no limit of this kind
    rate_limit: int | None = None  # how many starts are allowed in rate_seconds; None without the key
    rate_seconds: float | None = None  # the period of the rate; None without the key
    on_conflict: str = "keep"  # if the unique key is taken: "keep" its task, "replace" it, or "raise" DuplicateKey
    # how long other rows with unique_for_seconds cannot take the key, also after the end of this one; None: only while
    # this one is live
    unique_for_seconds: float | None = None
    # for "replace" with wake_after_seconds, the longest time from the first call to the start; None: no bound
    max_wait_seconds: float | None = None


class AlikeTasks(list[NewTask]):
    """New tasks that differ in their ids and arguments only."""


class Enqueued(Struct, frozen=True, gc=False):
    """Answer to one NewTask."""

    id: UUID  # of the new task, or of the task that holds one of its keys
    enqueued_at: datetime  # when that task was inserted, by the database's clock
    status: Status  # of that task
    created: bool  # False if another task holds one of the keys


class ClaimedTask(Struct, frozen=True, gc=False):
    """
    A RUNNING task of an executor, with its fields in the order of claim.sql.

    JSON columns are raw text, so that one bad row fails alone.

    It has more than 15 attributes because each column that a claim reads is a field.
    """

    id: UUID  # of the row
    task_type: str  # the name of the task, by which the executor finds its code
    queue_name: str  # the queue it was claimed from
    priority: int  # -100 to 100
    args: str  # JSON array
    kwargs: str  # JSON object
    inner_state: str | None  # JSON text of an actor's state or a function's checkpoint; None before the first one
    options: str  # JSON object of the options of a run
    metadata: str  # JSON object
    errors: str  # JSON array of the errors of earlier attempts
    worker_ids: str  # JSON array of the executors that started it
    parent_id: UUID | None  # the task that gets a message when this one ends; None: none
    key: str | None  # the unique key; None: none
    claim_number: int  # grows with each claim; an outcome with another number is lost
    attempts: int  # that have ended, of the function or of this poll
    max_attempts: int  # the first one included
    polls: int  # of an actor, that have succeeded
    executor_losses: int  # executors that were lost while they ran it
    rank: datetime  # its place in the order of claiming
    enqueued_at: datetime  # when the row was inserted
    started_at: datetime | None  # of the first attempt; None before it
    claimed_at: datetime  # when this claim was made
    wait_seconds: float  # from READY, or due, to the claim
    is_expired: bool  # it must not start, because its latest start has passed
    unread_polls: int = 0  # polls in a row that left messages unread
    stale_polls: int = 0  # polls in a row that ended with Stale
    timed_out: bool = False  # the wait for a message has ended without one
    timeout_at: datetime | None = None  # when the wait for a message ends; None: never
    # the pool that runs its body; a text, because a row may have the name of a newer version
    pool: str = PoolName.THREADS
    concurrency_key: str | None = None  # the limit that it counts for; None: none
    rate_key: str | None = None  # the rate that its start counts for; None: none

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit. Then other tasks may wait for its end."""
        return self.concurrency_key is not None or self.rate_key is not None

    may_unblock_others = is_limited


class NewMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to a task."""

    task_id: UUID  # the receiver
    body: str  # JSON text
    sender_id: UUID | None = None  # the task that sends it; None: no task
    child_status: Status | None = None  # the final status of a child that ended; None for other messages
    dedupe_key: str | None = None  # a second message with it is not stored; None: every message is stored
    is_droppable: bool = False  # if the receiver has ended, the message is dropped and raises no error


class StoredMessage(Struct, frozen=True):
    """One unread message of a claimed task."""

    id: int  # grows in the order of sending
    task_id: UUID  # the receiver
    sender_id: UUID | None  # the task that sent it; None: no task
    child_status: str | None  # the value of the column, not decoded; None for other messages
    body: str | None  # raw JSON text; None: without a body
    sent_at: datetime  # by the database's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of a poll besides the change of its own row."""

    consumed: Sequence[int] = ()  # ids of messages that it read and consumed
    # ids of messages that it read and left. They do not make a SUSPENDED task READY before its wake_at.
    unread: Sequence[int] = ()
    spawn: Sequence[NewTask] = ()  # children to insert
    send: Sequence[NewMessage] = ()  # messages to insert
    cancel_children: bool = False  # if the task ends, cancel its live descendants
    journal: Sequence[Entry] = ()  # entries to write
    forget: Sequence[str] = ()  # names of entries to delete, before others are written
    restart: Restart | None = None  # delete the journal before entries are written, and change the arguments
    finishes_itself: bool = False  # it knows whether a cancel was requested, and ends when its compensations have run

    def without_children(self) -> Effects:
        """Leave out the children that a workflow does not spawn, because its cancel was requested."""
        if self.finishes_itself:
            return self
        ids = {row.id for row in self.spawn}
        return replace(self, spawn=(), journal=[e for e in self.journal if e.child_id not in ids])


NO_EFFECTS = Effects()


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The result of one attempt of a claimed task. The engine performs it.

    For columns of JSON text, None leaves the column unchanged.

    It has more than 15 attributes because each column that a commit writes is a field.
    """

    task_id: UUID  # the claimed task
    claim_number: int  # of the claim; the outcome is lost if the row has another one
    # The state to enter. READY polls again now. SUSPENDED becomes READY if there are unread messages. A state
    # that is not final becomes CANCELLED if a cancel was requested.
    status: Status
    attempts: int  # the new value of the column
    parent_id: UUID | None = None  # as of the ClaimedTask; None: no parent
    # for SCHEDULED and SUSPENDED, from the commit; for AWAITING_CODE, the longest wait; None: wake_at, or no end
    wake_after_seconds: float | None = None
    wake_at: datetime | None = None  # for SCHEDULED and SUSPENDED, instead of seconds; None: wake_after_seconds
    # Wake earlier, to read the messages again that were left. It does not change timeout_at. None: do not.
    recheck_seconds: float | None = None
    unread_polls: int = 0  # polls in a row that left messages unread
    stale_polls: int = 0  # polls in a row that ended with Stale
    has_succeeded: bool = False  # add 1 to `polls`
    keeps_rank: bool = False  # for READY, keep the rank (a release) instead of starting at the end of the order
    worker_id: str | None = None  # the executor to append to `worker_ids`; None if no attempt started
    run_seconds: float | None = None  # of the body; None if it did not run
    return_value: str | None = None  # JSON text; None: no value
    error: str | None = None  # JSON text to append to `errors`; None: no error
    cause: str | None = None  # the fingerprint of the error, which groups failures; None: no error
    history: str | None = None  # a line to append to the column; None: no line
    inner_state: str | None = None  # JSON text; None: unchanged
    metadata: str | None = None  # JSON text; None: unchanged
    decided: Status | None = None  # the state that the engine chose after it read the row and its messages; None before
    may_unblock_others: bool = False  # as of the ClaimedTask. The commit then inserts admission requests.
    # since the body of a task with a rate has begun; None if it has not. The rate counts this start.
    begun_seconds: float | None = None
    effects: Effects = NO_EFFECTS  # of a poll, besides the change of its own row

    @property
    def is_plain_success(self) -> bool:
        """Whether it changes only what the success of a function changes: commit_successes.sql commits it."""
        return (
            self.has_succeeded
            and self.status is Status.SUCCESSFUL
            and self.parent_id is None
            and self.effects is NO_EFFECTS
            and self.run_seconds is not None
            and self.worker_id is not None
            and self.inner_state is None
            and self.metadata is None
            and self.error is None
            and self.history is None
            and self.decided is None
        )

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
    """The results of a batch of outcomes, by task id."""

    done: dict[UUID, Status] = field(default_factory=dict)  # the status that each task entered
    # another claim holds the task, or it has ended or is deleted; the outcome is dropped
    lost: frozenset[UUID] = frozenset()
    unknown: frozenset[UUID] = frozenset()  # another session has locked the row; commit again
    refused: dict[UUID, Exception] = field(default_factory=dict)  # the database refused the values, with this error
    # other sessions have locked what it writes; commit it again, later and alone
    waiting: dict[UUID, Exception] = field(default_factory=dict)
    wake: frozenset[UUID] = frozenset()  # receivers that the caller wakes
    # by the committed task, the number of messages to a parent that had ended
    dropped: dict[UUID, int] = field(default_factory=dict)


class Start(Struct, frozen=True, gc=False):
    """A body of a task with a rate that still runs."""

    task_id: UUID
    claim_number: int
    begun_seconds: float  # since it has begun


class OwnedTask(Struct, frozen=True):
    """One task that an executor holds, as its heartbeat reads it."""

    id: UUID
    claim_number: int
    is_cancel_requested: bool


class Rescued(Struct, frozen=True):
    """A task taken from a lost executor."""

    id: UUID  # of the task
    queue_name: str  # of the task
    task_type: str  # of the task
    status: Status  # READY, or FAILED at the limit of losses
    executor_losses: int  # lost executors of this task, with this one
    executor_id: UUID | None  # the lost executor; None: its row is gone
    silent_seconds: float  # since the last heartbeat of that executor


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A request for up to `limit` tasks of these queues."""

    executor_id: UUID  # the executor that claims
    queues: Sequence[str]  # names; the claim takes from no other queue
    limit: int  # how many tasks at most, over all pools and queues
    # the maximum for each pool; a pool without one is limited by `limit` alone
    pool_limits: Mapping[PoolName, int] = field(default_factory=dict)
    max_per_queue: Mapping[str, int] = field(default_factory=dict)  # the maximum for some queues
    # The queues that are known to have a max_running. The claim skips other queues with a max_running.
    limited: Collection[str] = ()
    free_slots: Mapping[PoolName, int] = field(default_factory=dict)  # for each pool, the maximum for a limited queue

    @property
    def limits(self) -> dict[PoolName, int]:
        """Return the maximum for each pool, without pools of maximum 0."""
        limits = {pool: min(self.limit, self.pool_limits.get(pool, self.limit)) for pool in PoolName}
        return {pool: limit for pool, limit in limits.items() if limit > 0}

    @property
    def is_empty(self) -> bool:
        return self.limit <= 0 or not self.queues


class ClaimedBatch(list[ClaimedTask]):
    """The tasks of a claim."""

    locked_queues: frozenset[str] = frozenset()  # limited queues that it skipped, because another claim has locked them
    # it stopped its search in many queues before it reached the limit; there may be more tasks
    is_truncated: bool = False
    admitted: Admitted | None = None  # what was admitted just before the claim
    returned: int = 0  # how many AWAITING_CODE tasks became READY just before the claim


class PendingWork(Struct, frozen=True):
    """The work that maintenance may find. The portable engine searches for the next wake_at and the next tick only."""

    next_wake_seconds: float | None  # until the next wake_at; None without one
    next_tick_seconds: float | None = None  # until the next tick of a schedule is due; None without one
    next_admission_seconds: float | None = None  # until the next admission request is due; None without one
    has_waiting_tick: bool = True  # a tick waits for a task of its schedule
    has_running: bool = True  # RUNNING tasks, perhaps of a lost executor
    has_messages: bool = True  # unread messages, perhaps of SUSPENDED tasks
    has_command: bool = True  # for this executor
    has_isolated: bool = True  # READY tasks that must run alone
    has_awaiting_code: bool = True  # AWAITING_CODE tasks, perhaps for the code of this executor


class QueueLatency(Struct, frozen=True):
    """A queue in use."""

    queue_name: str  # its name
    latency_seconds: float  # how long a task has been READY or due; 0 if all its tasks are RUNNING
    is_paused: bool  # people have paused it
    is_served: bool  # a live executor serves it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInfo:
    """
    The values that an executor writes about itself.

    Each heartbeat writes the state, waiting_for_connections and the problem, the first one also the others.
    """

    executor_id: UUID  # made by the process
    name: str  # for people; more than one executor may have it
    host: str  # its host name
    pid: int  # of its process
    versions: Mapping[str, str]  # of Python, Django and this package, by name
    queues: Sequence[str]  # those it claims from; empty: all queues of the backend
    slots: int  # worker threads
    async_slots: int = 0  # async tasks that it runs at once
    waiting_for_connections: int = 0  # async tasks, at most, since its last heartbeat
    problem: str | None = None  # why it makes no progress; None: it does
    state: str = "RUNNING"  # RUNNING, PAUSED, STOPPING or STOPPED
    # how many tasks of a queue it runs at once, for some queues
    queue_limits: Mapping[str, int] = field(default_factory=dict)
    task_types: Sequence[str] = ()  # those that its code declares


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredSchedules:
    """The result of firing due ticks of schedules."""

    count: int = 0  # schedules with due ticks
    tasks: Sequence[tuple[NewTask, datetime]] = ()  # the new tasks, with the moment when each was enqueued
    skipped: int = 0  # ticks
    has_cancelled: bool = False  # whether running tasks are to be cancelled

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
    """The result of admit()."""

    queues: Mapping[str, int] = field(default_factory=dict)  # of the admitted tasks, and how many tasks
    keys_seen: int = 0  # the number of keys that it has looked at
    has_more: bool = False  # whether it has left or inserted requests

    def __add__(self, other: Admitted) -> Admitted:
        return Admitted(
            queues=Counter(self.queues) + Counter(other.queues),
            keys_seen=self.keys_seen + other.keys_seen,
            has_more=self.has_more or other.has_more,
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
        may_unblock_others=claimed.may_unblock_others,
    )
