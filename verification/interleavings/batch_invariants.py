"""The invariants of batches, which hold after every order beside those of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F

from jobqueue.values.states import FINAL, Status
from verification.interleavings import invariants
from verification.interleavings.backend import succeed
from verification.interleavings.batch_backend import BATCH_QUEUE, CALLBACK, MEMBER, BatchBackend

CALLED = "each callback of a batch is called exactly once"
COUNTED = "a batch counts the last end of each member"
AFTER_MEMBERS = "a batch ends after its members"
ENDS = "a batch comes to its end"
# Rules of families that batches replace: a batch hears of each end of a member, also of those after a requeue, and of
# no end when it cancels them.
REPLACED = (invariants.REPORTED_ONCE, invariants.CONSUMED_TWICE)


@dataclass
class BatchSnapshot(invariants.Snapshot):
    """The rows of a batch, as they are now."""

    backend: BatchBackend
    state: dict[str, Any] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.backend.note_taken()
        self.tasks = [row._replace(inner_state=None) for row in self.tasks]
        tasks = self.backend.engine.db.tasks
        batch = tasks.filter(pk=self.backend.batch_id).first()
        self.state = {} if batch is None else batch.inner_state or {}
        self.calls = Counter(
            name.removeprefix("tests.")
            for name in tasks.filter(queue_name=CALLBACK).values_list("task_type", flat=True)
        )

    @property
    def statuses(self) -> Counter[str]:
        """The members by their status."""
        return Counter(row.status for row in self.tasks if row.parent_id == self.backend.batch_id)

    @property
    def status(self) -> str:
        """The status of the batch."""
        return next(row.status for row in self.tasks if row.id == self.backend.batch_id)

    def shape(self) -> tuple[object, ...]:
        numbers = {name: value for name, value in self.state.items() if isinstance(value, (int, bool))}
        for name in ("requeued_up_to", "requeues_up_to"):
            numbers.pop(name, None)
        return (*super().shape(), tuple(sorted(numbers.items())), tuple(sorted(self.calls.items())))


def problems(snapshot: BatchSnapshot) -> Iterator[str]:
    """Return each violated invariant, while messages to the batch may be unread."""
    yield from (text for text in invariants.problems(snapshot) if not text.startswith(REPLACED))
    for name, times in snapshot.calls.items():
        if times > 1:
            yield f"{CALLED}: {name} {times} times"
    if (snapshot.calls["on_success"] or snapshot.calls["on_end"]) and not snapshot.backend.records.requeued:
        yield from _after_members(snapshot, "called")
    if snapshot.status in (Status.SUCCESSFUL, Status.CANCELLED):
        yield from _after_members(snapshot, snapshot.status)


def _after_members(snapshot: BatchSnapshot, what: str) -> Iterator[str]:
    live = {status: count for status, count in snapshot.statuses.items() if status not in FINAL}
    # A cancelled member may still run; it has a request.
    if snapshot.status == Status.CANCELLED:
        live.pop(Status.RUNNING, None)
    if live:
        yield f"{AFTER_MEMBERS}: it is {what}, and its members are {live}"


def run_to_end(backend: BatchBackend) -> Iterator[str]:
    """Let all members run, and the batch count them. Then each member is counted, and each callback was called."""
    engine = backend.engine
    for _ in range(invariants.MAX_ROUNDS):
        backend.rescue()
        if backend.needs_sweep:
            engine.messages.sweep()
        engine.db.tasks.filter(wake_at__isnull=False).update(wake_at=F("enqueued_at"))
        engine.inbox.wake_due()
        ready = list(engine.db.tasks.ready().filter(queue_name__in=(BATCH_QUEUE, MEMBER)).values_list("queue_name"))
        if not ready:
            break
        for (name,) in ready:
            if name == MEMBER:
                backend.poll(MEMBER, decide=succeed)
            else:
                backend.poll_batch()
    else:
        yield f"{ENDS}: not within {invariants.MAX_ROUNDS} rounds"
    snapshot = BatchSnapshot(backend)
    yield from problems(snapshot)
    yield from _whole(snapshot)


def _whole(snapshot: BatchSnapshot) -> Iterator[str]:
    status, statuses, state = snapshot.status, snapshot.statuses, snapshot.state
    if status not in FINAL:
        yield f"{ENDS}: it is {status} {state}, and its members are {dict(statuses)}"
        return
    if status == Status.CANCELLED:
        if snapshot.calls:
            yield f"{CALLED}: a cancelled batch has called {dict(snapshot.calls)}"
        return
    counted = {name: state.get(name, 0) for name in ("total", "successful", "failed", "cancelled")}
    rows = {
        "total": statuses.total(),
        "successful": statuses[Status.SUCCESSFUL],
        "failed": statuses[Status.FAILED],
        "cancelled": statuses[Status.CANCELLED],
    }
    if counted != rows:
        yield f"{COUNTED}: {counted}, not {rows}"
    is_good = rows["successful"] == rows["total"]
    if is_good != (status == Status.SUCCESSFUL):
        yield f"{ENDS}: it is {status}, and its members are {dict(statuses)}"
    wanted = {"on_end", "on_success" if is_good else "on_failure"}
    if not wanted <= snapshot.calls.keys():
        yield f"{CALLED}: {dict(snapshot.calls)}, not {sorted(wanted)}"
