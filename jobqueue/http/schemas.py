"""The JSON that callers send and receive, as types. openapi.py makes the document from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from jobqueue.conf.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from jobqueue.declarations.options import LONGEST, MAX_CHARACTERS
from jobqueue.values.kinds import MAX_TASK_ATTEMPTS
from jobqueue.values.states import Status

MAX_BATCH = 1000
KEY_CHARACTERS, QUEUE_CHARACTERS = MAX_CHARACTERS["key"], MAX_CHARACTERS["queue_name"]
LONGEST_SECONDS = LONGEST.total_seconds()
PAYLOAD = "Redacted. Users need the permission view_payload."

Key: TypeAlias = Annotated[
    str,
    Meta(min_length=1, max_length=KEY_CHARACTERS, pattern=r"^[^\x00]*$", description="Without NUL characters."),
]
QueueName: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=QUEUE_CHARACTERS, description="Must not contain control characters.")
]
Count: TypeAlias = Annotated[int, Meta(ge=0)]


class Request(Struct, forbid_unknown_fields=True):
    """A body with no other members than these."""


class Submission(Request):
    task: Annotated[str, Meta(description="The name of a task declared with allow_http=True.")]
    args: list[Any] | None = None  # null: none
    kwargs: dict[str, Any] | None = None  # null: none
    queue: QueueName | None = None  # null: that of the task
    priority: Annotated[int, Meta(ge=TASK_MIN_PRIORITY, le=TASK_MAX_PRIORITY)] | None = None  # null: that of the task
    run_after: (
        Annotated[datetime, Meta(tz=True, description="Start no earlier than this time.")]
        | Annotated[float, Meta(ge=-LONGEST_SECONDS, le=LONGEST_SECONDS, description="Or this many seconds from now.")]
        | None
    ) = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_TASK_ATTEMPTS)] | None = None  # null: those of the task
    idempotency_key: (
        Annotated[
            Key,
            Meta(
                description="Belongs to the token or the user. The same request with the same key returns the same "
                "task, until retention deletes it. Another request with the same key is refused with 409."
            ),
        ]
        | None
    ) = None


Batch: TypeAlias = Annotated[list[Submission], Meta(min_length=1, max_length=MAX_BATCH)]


class MessageRequest(Request):
    body: Any
    dedupe_key: Key | None = None


class Cancel(Request):
    tree: Annotated[bool, Meta(description="Cancel its live descendants, too.")] = False


class Problem(Struct):
    """One problem of a request."""

    what: str
    where: Annotated[str, Meta(description="A JSON pointer into the body, empty for the whole body.")] = ""


class TaskReference(Struct):
    id: UUID
    status: Status
    url: str


class BatchItem(TaskReference):
    created: bool


class Cancelled(TaskReference):
    not_allowed: Annotated[Count, Meta(description="Live descendants that the token does not allow. They continue.")]


class TaskError(Struct):
    attempt: int | None  # that raised it; null if no attempt did
    at: str | None  # ISO 8601; null if it is unknown
    exception: str  # dotted path of its class
    message: Annotated[str, Meta(description=PAYLOAD)] | UnsetType = UNSET


class TaskDetail(TaskReference):
    task: str  # its name
    queue: str  # its name
    priority: int  # -100 to 100; a greater one starts earlier
    attempt: Annotated[int | None, Meta(description="Number of the running or the last attempt; null before.")]
    max_attempts: int  # the first one included
    enqueued_at: datetime  # by the database's clock, as the times below
    wake_at: datetime | None  # the next run; null: it does not wait for a time
    started_at: datetime | None  # of the first attempt; null before
    finished_at: datetime | None  # null before the end
    errors: list[TaskError]  # of its attempts, oldest first
    result: Annotated[Any, Meta(description=PAYLOAD)] | UnsetType = UNSET


class Sent(Struct):
    id: Annotated[int | None, Meta(description="null for a repeated message.")]


class Health(Struct):
    status: Literal["ok"] = "ok"


class NotReady(Struct):
    """Tokens see the problems of their queues. Users with view_task see all problems. Other callers see none."""

    problems: list[Problem]
    status: Literal["failing"] = "failing"


class QueueMetrics(Struct):
    """The depth of a queue: its tasks by state."""

    backend: str  # its alias in TASKS
    queue: str  # its name
    ready: Count  # may start now
    blocked: Count  # wait for a limit by key
    scheduled: Count  # wait for a time
    awaiting_code: Count  # wait for an executor with code for them
    running: Count  # claimed by an executor
    suspended: Count  # actors that wait for a message or a time
    estimated: Annotated[list[str], Meta(description="The states with an estimated number of tasks.")]
    oldest_ready_seconds: float  # the longest wait among the next tasks in the order of claiming; 0 if none waits


class Histogram(Struct):
    """A distribution of seconds."""

    count: Count
    seconds: Annotated[float, Meta(description="The sum.")]
    at_most: Annotated[dict[str, Count], Meta(description="How many took at most so many seconds.")]


class TickMetrics(Struct):
    """Ticks of schedules: those that became a task, and those that were skipped, by reason."""

    enqueued: Count  # became a task
    overlap: Count  # the task of the tick before had not ended
    paused: Count  # the schedule was paused
    missed: Count  # no executor ran in time
    key: Count  # a live task had the unique key


class TaskMetrics(Struct):
    """Counted since the installation."""

    backend: str  # its alias in TASKS
    queue: str  # its name
    task_type: str  # its name
    submitted: Count  # tasks created
    completed: Count  # tasks that ended SUCCESSFUL
    failed: Count  # attempts that failed
    retries: Count  # failed attempts that another attempt follows
    dead: Count  # tasks that ended FAILED
    lost: Count  # tasks rescued from a lost executor
    wait: Histogram  # of attempts, from READY to the claim
    run: Histogram  # of attempts, in their body
    ticks: TickMetrics  # of schedules
    tick_lateness: Histogram  # of ticks, from their time to the task


class LimitMetrics(Struct):
    """The tasks that wait for a limit, over all of its keys."""

    backend: str  # its alias in TASKS
    kind: Literal["concurrency", "rate"]  # of the limit
    limit: str  # its name
    blocked: Annotated[Count, Meta(description="Counted up to 10,000.")]
    oldest_blocked_seconds: float  # how long the first task in the order of claiming has waited; 0 if none waits


class BackendMetrics(Struct):
    backend: str  # its alias in TASKS
    inflight: Count  # tasks that executors have claimed
    active_workers: Count  # slots that run one of them
    slots: Count  # threads of live executors
    executors: Count  # that are alive
    oldest_snapshot_seconds: float  # age of the oldest transaction that keeps dead rows from being removed
    schedules_active: Count  # with a next tick
    schedules_paused: Count  # by people
    schedules_stopped: Count  # by an error
    schedule_overdue_seconds: float  # by how much the most overdue schedule is late; 0 if none is


class WorkflowMetrics(Struct):
    backend: str  # its alias in TASKS
    task_type: str  # the name of the workflow
    code: str  # the version of the code that ran last
    waiting: Count  # suspended, among the first 10,000 suspended tasks
    running: Count  # that executors run


class Metrics(Struct):
    queues: list[QueueMetrics]  # in use
    tasks: list[TaskMetrics]  # for each task type and queue
    limits: list[LimitMetrics]  # with waiting tasks
    backends: list[BackendMetrics]  # on this site
    workflows: list[WorkflowMetrics]  # by the version of their code, those that have started
