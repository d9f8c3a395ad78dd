"""The JSON that callers send and receive, as types. openapi.py makes the document from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from jobqueue.declarations.options import LONGEST
from jobqueue.values.records import Status

MAX_BATCH = 1000
LONGEST_SECONDS = LONGEST.total_seconds()
PAYLOAD = "Redacted. Users need the permission view_payload."

Key: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*$", description="Without NUL characters.")
]
Count: TypeAlias = Annotated[int, Meta(ge=0)]


class Request(Struct, forbid_unknown_fields=True):
    """A body with no other members than these."""


class Submission(Request):
    task: Annotated[str, Meta(description="The name of a task declared with allow_http=True.")]
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    queue: (
        Annotated[str, Meta(min_length=1, max_length=128, description="Must not contain control characters.")] | None
    ) = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    run_after: (
        Annotated[datetime, Meta(tz=True, description="Start no earlier than this time.")]
        | Annotated[float, Meta(ge=-LONGEST_SECONDS, le=LONGEST_SECONDS, description="Or this many seconds from now.")]
        | None
    ) = None
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
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


class Message(Request):
    body: Any
    dedupe_key: Key | None = None


class Cancel(Request):
    tree: Annotated[bool, Meta(description="Cancel its live descendants, too.")] = False


class Problem(Struct):
    """One problem of a request. where: a JSON pointer into the body, empty for the whole body."""

    what: str
    where: str = ""


class TaskLink(Struct):
    id: UUID
    status: Status
    url: str


class BatchItem(TaskLink):
    created: bool


class Cancelled(TaskLink):
    not_allowed: Annotated[Count, Meta(description="Live descendants that the token does not allow. They continue.")]


class TaskError(Struct):
    attempt: int | None
    at: str | None
    exception: str
    message: Annotated[str, Meta(description=PAYLOAD)] | UnsetType = UNSET


class TaskDetail(TaskLink):
    task: str
    queue: str
    priority: int
    attempt: Annotated[int | None, Meta(description="Number of the running or the last attempt; null before.")]
    max_attempts: int
    enqueued_at: datetime
    wake_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    errors: list[TaskError]
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
    """estimated: the states with an estimated number of tasks."""

    backend: str
    queue: str
    ready: Count
    blocked: Count
    scheduled: Count
    awaiting_code: Count
    running: Count
    suspended: Count
    estimated: list[str]
    oldest_ready_seconds: float


class Histogram(Struct):
    """at_most: how many took at most so many seconds. seconds: the sum."""

    count: Count
    seconds: float
    at_most: dict[str, Count]


class TickMetrics(Struct):
    """Ticks of schedules: those that became a task, and those that were skipped, by reason."""

    enqueued: Count
    overlap: Count
    paused: Count
    missed: Count
    key: Count


class TaskMetrics(Struct):
    """Counted since the installation."""

    backend: str
    queue: str
    task_type: str
    submitted: Count
    completed: Count
    failed: Count
    retries: Count
    dead: Count
    lost: Count
    wait: Histogram
    run: Histogram
    ticks: TickMetrics
    tick_lateness: Histogram


class LimitMetrics(Struct):
    """The tasks that wait for a limit, over all of its keys. blocked: counted up to 10,000."""

    backend: str
    kind: Literal["concurrency", "rate"]
    limit: str
    blocked: Count
    oldest_blocked_seconds: float


class BackendMetrics(Struct):
    backend: str
    inflight: Count
    active_workers: Count
    slots: Count
    executors: Count
    oldest_snapshot_seconds: float
    schedules_active: Count
    schedules_paused: Count
    schedules_stopped: Count
    schedule_overdue_seconds: float


class Metrics(Struct):
    queues: list[QueueMetrics]
    tasks: list[TaskMetrics]
    limits: list[LimitMetrics]
    backends: list[BackendMetrics]
