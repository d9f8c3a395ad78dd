"""
Actions of people on schedules: pause, resume, run now, backfill, and create or change their own.

If another transaction has locked a schedule for more than a second, these functions change nothing and raise
OperationalError.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from uuid import UUID

from jobqueue.api.notifications import notify_after_commit
from jobqueue.api.queues import pause_columns
from jobqueue.conf.compat import task_backends
from jobqueue.declarations.schedules import Declaration
from jobqueue.engine import Engine, engine_for
from jobqueue.exceptions import DuplicateKey, ScheduleChanged, ScheduleNotFound
from jobqueue.models import Schedule
from jobqueue.schedules.expressions import ticks_after
from jobqueue.schedules.rows import from_row_time, parse_ticks, queue_name_of
from jobqueue.values.records import Enqueued
from jobqueue.values.states import Status

MAX_BACKFILL = 10_000  # ticks
RESOLUTION = timedelta(microseconds=1)


@dataclass(frozen=True)
class Backfill:
    """The ticks of a range."""

    ticks: tuple[datetime, ...]  # those that become tasks
    existing: int  # how many others became tasks already


def pause(
    name: str,
    *,
    by: str = "",
    reason: str = "",
    until: datetime | timedelta | None = None,
    backend: str = "default",
) -> None:
    """
    Skip the ticks of a schedule from now on, and record them as paused. Tasks that exist already run.

    until: when the pause ends, a datetime or a timedelta from now. Raises ValueError if this time is past, or if a text
    is too long; ScheduleNotFound.
    """
    engine = engine_for(backend)
    row = _find(engine, name)
    columns = pause_columns(f"the schedule {name!r}", by, reason, until, engine.ticks.now())
    with engine.db.bounded(f"the schedule {name!r}"):
        engine.schedules.pause([row.pk], **columns)


def resume(name: str, *, backend: str = "default") -> None:
    """End the pause of a schedule. Its next tick is the first one after now. Raises ScheduleNotFound."""
    engine = engine_for(backend)
    with engine.db.bounded(f"the schedule {name!r}"):
        engine.schedules.resume([_find(engine, name).pk])


def run(name: str, *, backend: str = "default") -> UUID:
    """
    Enqueue a task of a schedule now, in spite of overlaps and a pause. Return the task's id.

    Its `context.scheduled_at` is the current time. Raises ScheduleNotFound, and DuplicateKey if another live task has
    the task's key.
    """
    engine = engine_for(backend)
    row = _find(engine, name)
    with engine.db.bounded(f"the schedule {name!r}, or the key of its task,"):
        answer = engine.schedules.run_now(row.pk)
    if not answer.created:
        raise DuplicateKey(
            f"Nothing was enqueued: the task {answer.id} has the key of the schedule {name!r}, and has not ended."
        )
    _announce(engine, row, [answer])
    return answer.id


def preview_backfill(name: str, start: datetime, end: datetime, *, backend: str = "default") -> Backfill:
    """
    Preview `backfill()`: return the ticks that it would enqueue.

    start, end: aware datetimes; ticks at both belong to the range. Raises ScheduleNotFound, and ValueError if the range
    ends after now or before it starts, or has more than MAX_BACKFILL ticks.
    """
    engine = engine_for(backend)
    return _plan_backfill(engine, _find(engine, name), start, end)


def backfill(name: str, start: datetime, end: datetime, *, backend: str = "default") -> int:
    """
    Enqueue tasks for the ticks of a range that have none, in one transaction. Return how many.

    The tasks become READY at once, in spite of overlaps. Raises as `preview_backfill()` does.
    """
    engine = engine_for(backend)
    row = _find(engine, name)
    ticks = _plan_backfill(engine, row, start, end).ticks
    with engine.db.bounded(f"the schedule {name!r}, or the key of its task,"):
        answers = engine.schedules.backfill(row.pk, ticks)
    _announce(engine, row, answers)
    return sum(answer.created for answer in answers)


def create(declaration: Declaration) -> Schedule:
    """
    Create a schedule that people can change. Its `location` must be empty.

    Raises ValueError with all problems of the declaration, or if there is a schedule of this name.
    """
    engine, columns = _checked(declaration)
    with engine.db.bounded(f"the schedule {declaration.name!r}"):
        others = engine.db.schedules.filter(name=declaration.name)
        existing = engine.db.with_lock(others, wait=True).first()
        row, is_new = engine.schedules.save(declaration.name, columns)
        if not is_new and (existing is None or existing.retired_at is None):
            raise ValueError(
                f"There is a schedule {declaration.name!r} already. Choose another name, or change that schedule."
            )
    return row


def change(declaration: Declaration, *, unchanged_since: datetime | None = None) -> Schedule:
    """
    Change a schedule that people created. A change of its times moves the next tick.

    unchanged_since: the `updated_at` of the row that the caller has read; None replaces any row. Raises ValueError with
    all problems of the declaration, or if code declares the schedule; ScheduleChanged; ScheduleNotFound.
    """
    engine, columns = _checked(declaration)
    with engine.db.bounded(f"the schedule {declaration.name!r}"):
        row = _find(engine, declaration.name, lock=True)
        _refuse_declared(row)
        if unchanged_since not in (None, row.updated_at):
            raise ScheduleChanged
        return engine.schedules.save(declaration.name, columns)[0]


def delete(name: str, *, backend: str = "default") -> None:
    """
    Delete a schedule and its records. Tasks that exist already stay.

    Raises ScheduleNotFound, and ValueError if code declares the schedule.
    """
    engine = engine_for(backend)
    with engine.db.bounded(f"the schedule {name!r}"):
        row = engine.db.with_lock(engine.db.schedules.filter(name=name), wait=True).first() or _find(engine, name)
        if row.retired_at is None:
            _refuse_declared(row)
        engine.schedules.delete(row)


def _checked(declaration: Declaration) -> tuple[Engine, dict[str, object]]:
    if problems := [*declaration.problems()]:
        raise ValueError(f"The schedule {declaration.name!r:.200} cannot be used: {'; '.join(map(str, problems))}.")
    return engine_for(declaration.backend), declaration.columns()


def _find(engine: Engine, name: str, *, lock: bool = False) -> Schedule:
    rows = engine.db.schedules.active().filter(name=name)
    row = (engine.db.with_lock(rows, wait=True) if lock else rows).first()
    if row is None:
        raise ScheduleNotFound(f"The backend {engine.alias!r} has no schedule {name!r:.300}.")
    return row


def _refuse_declared(row: Schedule) -> None:
    if row.declared_at:
        raise ValueError(f"Code declares the schedule {row.name!r} at {row.declared_at}. Change it there.")


def _plan_backfill(engine: Engine, row: Schedule, start: datetime, end: datetime) -> Backfill:
    for name, moment in (("start", start), ("end", end)):
        if moment.tzinfo is None:
            raise ValueError(f"{name} must have a time zone, not {moment!r}.")
    if start > end:
        raise ValueError(f"The range ends ({end.isoformat()}) before it starts ({start.isoformat()}).")
    if end > from_row_time(engine.ticks.now()):
        raise ValueError(f"The range must not end after now, but ends at {end.isoformat()}.")
    ticks = takewhile(lambda tick: tick <= end, ticks_after(parse_ticks(row), start - RESOLUTION))
    due = list(islice(ticks, MAX_BACKFILL + 1))
    if len(due) > MAX_BACKFILL:
        raise ValueError(f"The range has more than {MAX_BACKFILL:,} ticks. Choose a shorter one.")
    done = engine.schedules.ticks_with_task(row, due)
    missing = tuple(tick for tick in due if tick not in done)
    return Backfill(missing, len(due) - len(missing))


def _announce(engine: Engine, row: Schedule, answers: Collection[Enqueued]) -> None:
    """Notify executors after the commit, and send task_enqueued, as enqueue() does."""
    created = [answer for answer in answers if answer.created]
    if any(answer.status is Status.READY for answer in created):
        notify_after_commit(engine, {queue_name_of(row)})
    backend: Any = task_backends[engine.alias]
    backend.announce([answer.id for answer in created])
