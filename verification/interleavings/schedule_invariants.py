"""The rules of schedules that hold after every order: each tick became one task, or one record says why it did not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections

from jobqueue.models import STOPPED_BY, Schedule, ScheduleTick
from jobqueue.schedules.planning import first_tick
from jobqueue.values.policies import Overlap
from jobqueue.values.states import FINAL
from verification.interleavings import invariants
from verification.interleavings.invariants import Snapshot
from verification.interleavings.schedule_backend import ScheduleBackend, SteppedTiming

MAX_ROUNDS = 20

TICK_LOST = "no tick is lost"
TICK_TWICE = "no tick has two outcomes"
NOT_DUE = "only due ticks have an outcome"
UNRECORDED = "each task of a schedule has one record, and each record of a task its task"
WRONG_RUNS = "ticks run unless there is a reason to skip them"
NEXT_TICK = "the next tick is the first one without an outcome"
NO_OVERLAP = "tasks of a schedule do not overlap"
REPLACED = "the next tick cancels the running task"
DEPLOYED = "the schedules are those of one deployment"
STOPPED = "a schedule is stopped only if it cannot be used"
STILL_WAITING = "a waiting tick runs when the task has ended"

SCHEDULE, MANUAL = ScheduleTick.Trigger.SCHEDULE, ScheduleTick.Trigger.MANUAL
TASKS = """
    SELECT id, schedule_id, (options ->> 'scheduled_at')::timestamptz, status, cancel_requested_at IS NOT NULL,
        enqueued_at, finished_at
    FROM jobqueue_task WHERE backend = %s AND schedule_id IS NOT NULL ORDER BY enqueued_at, id
"""


class TaskRow(NamedTuple):
    id: UUID
    schedule_id: int
    scheduled_at: datetime
    status: str
    is_cancel_requested: bool
    enqueued_at: datetime
    finished_at: datetime | None


@dataclass
class ScheduleSnapshot(Snapshot):
    """The rows of schedules, their ticks and tasks, beside those of every backend."""

    backend: ScheduleBackend
    schedules: dict[int, Schedule] = field(default_factory=dict)
    ticks: dict[int, list[ScheduleTick]] = field(default_factory=dict)
    fired: dict[UUID, TaskRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        engine = self.backend.engine
        while engine.ticks.fire().count:  # those that were skipped because another session had locked them
            pass
        with connections["default"].cursor() as cursor:
            cursor.execute(TASKS, [engine.alias])
            self.fired = {row[0]: TaskRow(*row) for row in cursor.fetchall()}
        self.schedules = {row.pk: row for row in engine.db.schedules}
        by_schedule: defaultdict[int, list[ScheduleTick]] = defaultdict(list)
        for tick in ScheduleTick.objects.filter(schedule__in=self.schedules).order_by("tick_at", "trigger"):
            by_schedule[tick.schedule_id].append(tick)
        self.ticks = dict(by_schedule)
        self.backend.names |= {pk: "fired" for pk in self.fired if pk not in self.backend.names}
        super().__post_init__()

    def shape(self) -> tuple[Any, ...]:
        rows = [
            (row.name, row.next_at, row.waiting_at, row.paused_at is None, row.retired_at is None, row.expression)
            for row in self.schedules.values()
        ]
        ticks = [
            (self.schedules[pk].name, tick.tick_at, tick.count, tick.reason, tick.trigger != SCHEDULE)
            for pk, ticks in self.ticks.items()
            for tick in ticks
            if tick.trigger == SCHEDULE
        ]
        return (*super().shape(), tuple(rows), tuple(ticks))


def problems(snapshot: ScheduleSnapshot, *, is_over: bool = False) -> Iterator[str]:
    yield from invariants.problems(snapshot)
    yield from _records(snapshot)
    for pk, row in snapshot.schedules.items():
        yield from _outcomes(snapshot, row)
        yield from _next_tick(snapshot, row)
        yield from _overlaps(snapshot, row)
        if row.paused_by == STOPPED_BY and row.name != "broken":
            yield f"{STOPPED}: {row.pause_reason.splitlines()[0]}"
        if is_over and row.waiting_at is not None:
            yield f"{STILL_WAITING}: {row.name} at {row.waiting_at:%H:%M}"
        allowed, runs = snapshot.backend.schedules.allowed_runs.get(pk), len(runs_of(snapshot, pk))
        if allowed is not None and runs + (row.waiting_at is not None) not in allowed:
            yield f"{WRONG_RUNS}: {runs} tasks of {row.name}, not one of {sorted(allowed)}"
    if deployed := snapshot.backend.schedules.deployed:
        names = frozenset(row.name for row in snapshot.schedules.values() if row.retired_at is None)
        if names not in deployed:
            yield f"{DEPLOYED}: {sorted(names)}, not one of {[sorted(names) for names in deployed]}"


def run_to_end(backend: ScheduleBackend) -> Iterator[str]:
    """End all tasks, until no tick waits for one."""
    backend.records.key_owners.clear()
    for _ in range(MAX_ROUNDS):
        ScheduleSnapshot(backend)  # it fires
        live = list(backend.engine.db.tasks.live().filter(schedule_id__isnull=False).values_list("pk", flat=True))
        if not live:
            break
        backend.engine.db.tasks.filter(pk__in=live).update(
            finished_at=backend.engine.db.tasks.get(pk=live[0]).enqueued_at
        )
        for pk in live:
            backend.cancel(pk)
    yield from problems(ScheduleSnapshot(backend), is_over=True)


def runs_of(snapshot: ScheduleSnapshot, schedule_id: int) -> list[ScheduleTick]:
    """Return the records of ticks that became tasks, without those that people have started."""
    ticks = snapshot.ticks.get(schedule_id, [])
    return [tick for tick in ticks if tick.trigger == SCHEDULE and tick.task_id is not None]


def _records(snapshot: ScheduleSnapshot) -> Iterator[str]:
    recorded = Counter(tick.task_id for ticks in snapshot.ticks.values() for tick in ticks if tick.task_id is not None)
    for task in snapshot.fired.values():
        is_pruned = task.scheduled_at < snapshot.backend.schedules.pruned_before
        if task.schedule_id in snapshot.schedules and recorded[task.id] != 1 and not is_pruned:
            yield f"{UNRECORDED}: the task of {task.scheduled_at:%H:%M:%S} has {recorded[task.id]} records"
    for pk, ticks in snapshot.ticks.items():
        for tick in [tick for tick in ticks if tick.task_id is not None]:
            fired = snapshot.fired.get(tick.task_id) if tick.task_id else None
            if fired is None or (fired.schedule_id, fired.scheduled_at) != (pk, tick.tick_at):
                yield f"{UNRECORDED}: the record of {tick.tick_at:%H:%M:%S} has {fired}"
        enqueued = Counter(tick.tick_at for tick in ticks if tick.task_id is not None and tick.trigger != MANUAL)
        for at in [at for at, times in enqueued.items() if times > 1]:
            yield f"{TICK_TWICE}: {at:%H:%M:%S} has {enqueued[at]} tasks"
    people = sum(tick.trigger != SCHEDULE for ticks in snapshot.ticks.values() for tick in ticks)
    done = len(snapshot.backend.schedules.manual) + sum(snapshot.backend.schedules.backfilled)
    if people != done:
        yield f"{UNRECORDED}: people have enqueued {done} tasks, {people} are recorded"


def _outcomes(snapshot: ScheduleSnapshot, row: Schedule) -> Iterator[str]:
    """Compare the outcomes to the ticks that were due. While a schedule is changed, either timing may have applied."""
    mismatches = [list(_compare(snapshot, row, due)) for due in _possible_ticks(snapshot.backend, row)]
    yield from min(mismatches, key=len)


def _compare(snapshot: ScheduleSnapshot, row: Schedule, due: Sequence[datetime]) -> Iterator[str]:
    ticks = [tick for tick in snapshot.ticks.get(row.pk, []) if tick.trigger == SCHEDULE]
    ticks = [tick for tick in ticks if not due or tick.last_at >= due[0]]  # older ones were there before
    single = Counter(tick.tick_at for tick in ticks if tick.task_id is not None)
    single.update([row.waiting_at] if row.waiting_at is not None else [])
    skipped: Counter[datetime] = Counter()
    for tick in ticks:
        if tick.task_id is None:
            inside = [at for at in due if tick.tick_at <= at <= tick.last_at and not single[at]]
            before = snapshot.backend.schedules.counted_before.get(tick.pk, 0)
            if len(inside) != tick.count - before:
                yield f"{TICK_TWICE if tick.count - before > len(inside) else TICK_LOST}: {tick.count} ticks skipped"
            skipped.update(inside)
    outcomes = single + skipped
    for at in due:
        if outcomes[at] != 1:
            rule = TICK_TWICE if outcomes[at] else TICK_LOST
            yield f"{rule}: {row.name} at {at:%H:%M:%S} has {outcomes[at]} outcomes"
    for at in outcomes.keys() - set(due):
        yield f"{NOT_DUE}: {row.name} at {at:%H:%M:%S}"


def _possible_ticks(backend: ScheduleBackend, row: Schedule) -> Iterator[list[datetime]]:
    """Yield the ticks that need an outcome, for each moment at which the timing may have changed."""
    records, now = backend.schedules, backend.clock
    before, changes = records.timings.get(row.pk), records.changes.get(row.pk, [])
    if before is None:  # created during the order, with the clock at rest
        yield []
        return
    if not changes:
        yield list(before.due(now))
        return
    earliest, latest = min(change[0] for change in changes), max(change[1] for change in changes)
    after = SteppedTiming.of(row)
    for moment in [earliest, latest, *(moment for moment in records.moments if earliest <= moment <= latest)]:
        old = list(before.ticks(moment))
        yield [*old, *(at for at in after.restarted(moment).due(now) if row.retired_at is None)]


def _next_tick(snapshot: ScheduleSnapshot, row: Schedule) -> Iterator[str]:
    policy, now = SteppedTiming.of(row).policy, snapshot.backend.clock
    if row.retired_at is not None:
        if (row.next_at, row.due_at, row.waiting_at) != (None, None, None):
            yield f"{NEXT_TICK}: {row.name} was removed, and is due at {row.due_at}"
        return
    last = [tick.last_at for tick in snapshot.ticks.get(row.pk, []) if tick.trigger == SCHEDULE]
    expected = first_tick(SteppedTiming.of(row).expression, policy, max([now - policy.delay, *last]))
    due_at = None if row.next_at is None else row.next_at + policy.delay
    if row.next_at != expected or row.due_at != due_at:
        yield f"{NEXT_TICK}: {row.name} has {row.next_at} and is due at {row.due_at}, expected {expected}"


def _overlaps(snapshot: ScheduleSnapshot, row: Schedule) -> Iterator[str]:
    ids = {tick.task_id for tick in runs_of(snapshot, row.pk)}
    tasks = [task for task in snapshot.fired.values() if task.id in ids]
    match row.overlap:
        case Overlap.SKIP | Overlap.QUEUE_ONE:
            for first, other in pairwise(tasks):
                if first.finished_at is None or first.finished_at > other.enqueued_at:
                    yield f"{NO_OVERLAP}: {first.scheduled_at:%H:%M} and {other.scheduled_at:%H:%M} of {row.name}"
        case Overlap.CANCEL_RUNNING:
            for task in sorted(tasks, key=lambda task: task.scheduled_at)[:-1]:
                if task.status not in FINAL and not task.is_cancel_requested:
                    yield f"{REPLACED}: {task.scheduled_at:%H:%M} of {row.name} is {task.status}"
