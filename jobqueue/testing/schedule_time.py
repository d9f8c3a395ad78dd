"""
The time of schedules in a test: it stands still until the test moves it.

The ticks of a `Cron` are times of the calendar, so schedules get a clock of their own. All other times of the queue are
compared with the database's clock, and a test moves them back instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, islice, takewhile
from typing import Any

from django.db.models import DateTimeField, F, QuerySet

from jobqueue.api.schedule_deployments import DeclaredSchedules
from jobqueue.engine import DueSchedule, Engine, set_next
from jobqueue.executor.running.events import is_enqueued_heard, send_enqueued
from jobqueue.models import Schedule, ScheduleDeployment, ScheduleTick
from jobqueue.schedules.expressions import ticks_after
from jobqueue.schedules.planning import MAX_TICKS, first_tick
from jobqueue.schedules.rows import from_row_time, make_policy, parse_expression, to_row_time
from jobqueue.values.policies import CatchUp
from jobqueue.values.records import FiredSchedules

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
TICKS_OF_A_STEP = MAX_TICKS // 2  # of each schedule, so that one plan accounts for all of them


def move_back(rows: QuerySet[Any], time: timedelta) -> None:
    """Let time pass for rows: all their times move back."""
    times = [field.name for field in rows.model._meta.fields if isinstance(field, DateTimeField)]
    rows.update(**{name: F(name) - time for name in times})


class PassedTime:
    """How far a test has moved the time, for workflows that ask for it. It is a row, as the clock of the schedules."""

    def __init__(self, engine: Engine) -> None:
        self._deployments, self._backend = (
            ScheduleDeployment.objects.using(engine.database),
            f"{engine.alias:.56} testing",
        )

    def read(self) -> timedelta:
        row = self._deployments.filter(backend=self._backend, digest="passed").first()
        return timedelta() if row is None or row.applied_at is None else row.applied_at - EPOCH

    def add(self, time: timedelta) -> None:
        self._deployments.update_or_create(
            backend=self._backend, digest="passed", defaults={"applied_at": EPOCH + self.read() + time}
        )


class ScheduleTime:
    """The clock of the schedules of one backend. It is a row, so that the rollback of a test resets it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._row = ScheduleDeployment.objects.using(engine.database).filter(
            backend=f"{engine.alias:.56} testing", digest="time"
        )
        engine.ticks.now = self.now

    def now(self) -> datetime:
        """Return the time that the test has set. Before that, the database's."""
        at: datetime | None = self._row.values_list("applied_at", flat=True).first()
        return at or self._engine.db.now()

    def set(self, moment: datetime) -> None:
        """Go on from a moment: ticks up to it do not fire. Raises ValueError if a later tick has fired."""
        self._declared.write(self._engine)
        rows = list(self._engine.db.schedules.active())
        ticks = self._engine.db.ticks.filter(schedule__in=rows, trigger=ScheduleTick.Trigger.SCHEDULE)
        if fired := ticks.filter(last_at__gt=to_row_time(moment)).select_related("schedule").first():
            raise ValueError(f"The schedule {fired.schedule.name!r} has a tick after {moment}: {fired.last_at}.")
        for row in rows:
            after = max(moment, from_row_time(row.starts_at) - timedelta.resolution) if row.starts_at else moment
            set_next(row, first_tick(parse_expression(row), make_policy(row), from_row_time(after)))
        self._engine.db.schedules.bulk_update(rows, ["next_at", "due_at"])
        self._write(to_row_time(moment))

    def advance(self, time: timedelta, *, downtime: bool) -> None:
        """Fire the ticks within `time`. downtime: at its end, as executors do that start then."""
        declared = self._declared
        if not declared.declarations and not self._engine.db.schedules.exists():
            return
        start = self.now()
        end = start + time
        self._write(start)  # the clock stands still from here on
        declared.write(self._engine)
        if downtime:
            self._fire(start, end, end)
        else:
            with self._nothing_is_missed():
                while (step := self._next_step(end)) is not None:
                    self._fire(start, step, end)
        self._write(end)

    def fire_waiting(self) -> int:
        """Enqueue the tasks of ticks that waited for a task which has ended. Return how many."""
        return len(self._announced(self._engine.ticks.fire()).tasks) if self._row.exists() else 0

    @property
    def _declared(self) -> DeclaredSchedules:
        return DeclaredSchedules.of(self._engine.alias)

    def _write(self, at: datetime) -> None:
        if not self._row.update(applied_at=at):
            self._row.create(backend=f"{self._engine.alias:.56} testing", digest="time", applied_at=at)

    @contextmanager
    def _nothing_is_missed(self) -> Iterator[None]:
        """Let executors run all the time. They fire each tick at its moment, and have nothing to catch up."""

        def read(row: Schedule) -> DueSchedule:
            due = DueSchedule.from_row(row)
            policy = replace(due.policy, catch_up=CatchUp.ALL, max_catch_up=MAX_TICKS, catch_up_window=None)
            return replace(due, policy=policy)

        self._engine.ticks.read = read
        try:
            yield
        finally:
            self._engine.ticks.read = DueSchedule.from_row

    def _next_step(self, end: datetime) -> datetime | None:
        """Return the time until which no due schedule has too many ticks for one plan. None if none is due."""
        due = self._engine.db.schedules.filter(due_at__lte=end)
        return min((_last_of_step(row, end) for row in due), default=None)

    def _fire(self, start: datetime, step: datetime, end: datetime) -> None:
        """Fire what is due at a step. The rest of the time passes for the new tasks."""
        self._write(step)
        db = self._engine.db
        while (fired := self._announced(self._engine.ticks.fire())).count:
            ids = [task.id for task, _ in fired.tasks]
            for tick in db.ticks.filter(task_id__in=ids).select_related("schedule"):
                due_at = tick.tick_at + make_policy(tick.schedule).delay
                move_back(db.tasks.filter(pk=str(tick.task_id)), end - max(start, due_at))

    def _announced(self, fired: FiredSchedules) -> FiredSchedules:
        if is_enqueued_heard():
            for task, enqueued_at in fired.tasks:
                send_enqueued(self._engine, task, enqueued_at)
        return fired


def _last_of_step(row: Schedule, end: datetime) -> datetime:
    """Return when the last tick of the next step is due, at most `end`."""
    try:
        expression, policy = parse_expression(row), make_policy(row)
    except ValueError:  # fire() pauses the schedule and logs the reason
        return end
    first: datetime = from_row_time(row.next_at or end)
    ticks = chain([first], ticks_after(expression, first))
    step = list(takewhile(lambda tick: tick + policy.delay <= from_row_time(end), islice(ticks, TICKS_OF_A_STEP)))
    return to_row_time(step[-1] + policy.delay) if len(step) == TICKS_OF_A_STEP else end
