"""
The rules of limits. Some hold whenever a transaction has ended: no limit is exceeded. The others hold after every
order, when maintenance has admitted once more: nothing is blocked that may run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import F

from jobqueue.models import AdmissionRequest
from jobqueue.values.states import LimitKind, Status
from verification.interleavings import invariants
from verification.interleavings.backend import succeed
from verification.interleavings.invariants import COMES_TO_REST, Snapshot
from verification.interleavings.limit_backend import QUEUE, LimitBackend

MAX_ROUNDS = 20

CONCURRENT = "no more tasks of a key count than its limit"
RATE = "no more tasks start in a window than the rate allows"
BLOCKED = "nothing is blocked that may run"
LAST_CALL = "the last call with a key starts last"
ONE_TASK = "calls with one key create one task"
NAMED = "an answer names a task that exists"
WAITS = "nobody waits for a limit"

# Steps that may wait for other connections: those of people, of callers with a unique key, and of wake(). The portable
# engine locks keys by the requests to look at them.
MAY_WAIT = (
    " FOR NO KEY UPDATE OF task", " FOR UPDATE", "INSERT INTO limit", "UPDATE limit", "INSERT INTO keyreservation",
    "UPDATE keyreservation", "reserve_key", "admissionrequest",
)  # fmt: skip
MAY_WAIT_WITH_KEY = (
    "SELECT id, enqueued_at, status",
    "INSERT INTO task",
    "UPDATE task SET status",
)  # enqueue() and requeue()

COUNTED = """
    SELECT concurrency_key, count(*) FROM jobqueue_task
    WHERE backend = %s AND concurrency_key IS NOT NULL AND finished_at IS NULL
        AND (status IN ('READY', 'RUNNING') OR counts_while_waiting)
    GROUP BY concurrency_key
"""
LIMITED = """
    SELECT id, status, concurrency_key, concurrency_limit, rate_key, rate_limit, counts_while_waiting,
        key, status = 'READY' OR (status = 'RUNNING' AND start_counted_at IS NULL)
    FROM jobqueue_task WHERE backend = %s AND finished_at IS NULL ORDER BY rank, id
"""


class LimitedRow(NamedTuple):
    id: UUID
    status: str
    concurrency_key: str | None
    concurrency_limit: int | None
    rate_key: str | None
    rate_limit: int | None
    counts_while_waiting: bool
    key: str | None
    is_starting: bool

    @property
    def counts(self) -> bool:
        return self.counts_while_waiting or self.status in (Status.READY, Status.RUNNING)


@dataclass
class LimitSnapshot(Snapshot):
    """The live tasks, after maintenance has admitted once more."""

    backend: LimitBackend
    live: list[LimitedRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend.admit_at_last()
        with connections["default"].cursor() as cursor:
            cursor.execute(LIMITED, [self.backend.engine.alias])
            self.live = [LimitedRow(*row) for row in cursor.fetchall()]
        super().__post_init__()

    def shape(self) -> tuple[Any, ...]:
        name = self.backend.names
        rows = [(name[row.id], row.status, row.counts_while_waiting, row.key) for row in self.live]
        requests = AdmissionRequest.objects.filter(backend=self.backend.engine.alias).values_list("kind", "key")
        return (*super().shape(), tuple(rows), tuple(self.backend.limits.calls), tuple(sorted(requests)))


def at_each_end(backend: LimitBackend) -> Iterator[str]:
    """Return what is wrong after a transaction has ended."""
    with connections["default"].cursor() as cursor:
        cursor.execute(COUNTED, [backend.engine.alias])
        for key, count in cursor.fetchall():
            if count > backend.limits.limits[key]:
                yield f"{CONCURRENT}: {count} of {backend.limits.limits[key]} count for {key}"
    yield from _starts(backend)


def _starts(backend: LimitBackend) -> Iterator[str]:
    """The body of a claimed task may begin at any moment, until its start is counted."""
    running = backend.engine.db.tasks.running().filter(rate_key__isnull=False, start_counted_at__isnull=True)
    starts = Counter(running.values_list("rate_key", flat=True))
    for (of_key, window), count in backend.limits.starts.items():
        starts[of_key] += count if window == backend.limits.windows else 0
    for key, count in starts.items():
        if count > (limit := backend.limits.limits[str(key)]):
            yield f"{RATE}: {count} of {limit} have started for {key}"


def problems(snapshot: LimitSnapshot) -> Iterator[str]:
    yield from invariants.problems(snapshot)
    yield from at_each_end(snapshot.backend)
    yield from _blocked_by_concurrency(snapshot)
    yield from _blocked_for_a_start(snapshot)
    yield from _calls(snapshot)
    yield from _waits(snapshot)


def _blocked_by_concurrency(snapshot: LimitSnapshot) -> Iterator[str]:
    active = Counter(row.concurrency_key for row in snapshot.live if row.counts)
    waiting: defaultdict[str, list[LimitedRow]] = defaultdict(list)
    for row in snapshot.live:
        if row.concurrency_key and row.status == Status.BLOCKED and not row.counts_while_waiting:
            waiting[row.concurrency_key].append(row)
    for key, rows in waiting.items():
        number = snapshot.backend.number_of(LimitKind.CONCURRENCY, key, rows[0].concurrency_limit or 0)
        if active[key] < number:
            names = [snapshot.backend.names[row.id] for row in rows]
            yield f"{BLOCKED}: {names} wait, {active[key]} of {number} count for {key}"


def _blocked_for_a_start(snapshot: LimitSnapshot) -> Iterator[str]:
    """READY tasks, and RUNNING tasks whose start is not counted, may start at any moment."""
    backend = snapshot.backend
    starting = Counter(row.rate_key for row in snapshot.live if row.is_starting)
    for row in snapshot.live:
        may_start = row.concurrency_key is None or row.counts_while_waiting
        if row.rate_key and row.status == Status.BLOCKED and may_start:
            number = backend.number_of(LimitKind.RATE, row.rate_key, row.rate_limit or 0)
            used = starting[row.rate_key] + backend.limits.starts[row.rate_key, backend.limits.windows]
            if used < number:
                yield f"{BLOCKED}: {backend.names[row.id]} waits, {used} of {number} are used of {row.rate_key}"


def _calls(snapshot: LimitSnapshot) -> Iterator[str]:
    backend, existing = snapshot.backend, {row.id for row in snapshot.tasks}
    for pk in backend.limits.answers:
        if pk not in existing:
            yield f"{NAMED}: {pk}"
    created, answered = backend.limits.created, set(backend.limits.answers)
    if backend.only_one and len(created) != 1:
        yield f"{ONE_TASK}: {len(created)} were created"
    elif backend.only_one and answered != set(created):
        yield f"{ONE_TASK}: the answers name {len(answered)}"


def _waits(snapshot: LimitSnapshot) -> Iterator[str]:
    allowed = MAY_WAIT + (MAY_WAIT_WITH_KEY if snapshot.backend.may_wait else ())
    for words in snapshot.backend.waited:
        if "SKIP LOCKED" in words or not any(part in words for part in allowed):
            yield f"{WAITS}: {words}"


def run_to_end(backend: LimitBackend) -> Iterator[str]:
    """Start and end all tasks, while the windows of the rates pass. Then none is left."""
    engine = backend.engine
    for _ in range(MAX_ROUNDS):
        engine.db.tasks.filter(wake_at__isnull=False).update(wake_at=F("enqueued_at"))
        engine.inbox.wake_due()
        snapshot = LimitSnapshot(backend)
        yield from at_each_end(backend)
        if not snapshot.live:
            break
        for pk in engine.db.tasks.running().values_list("pk", flat=True):
            backend.commit(succeed(backend.claimed[pk], ()))
        for pk in engine.db.tasks.suspended().values_list("pk", flat=True):
            backend.cancel(pk)
        backend.claim(QUEUE, limit=50)
        yield from at_each_end(backend)
        backend.pass_time()
    else:
        yield f"{COMES_TO_REST}: {[(backend.names[row.id], row.status) for row in snapshot.live]} are left"
    yield from problems(LimitSnapshot(backend))
    if backend.last_call_runs and backend.limits.ran and backend.limits.calls[-1:] != backend.limits.ran[-1:]:
        yield f"{LAST_CALL}: the calls were {backend.limits.calls}, those that started {backend.limits.ran}"
