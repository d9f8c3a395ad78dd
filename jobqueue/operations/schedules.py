"""Schedules as people see them: in words, their next ticks, and what became of the last ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import takewhile
from operator import or_
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import DurationField, ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery
from django.utils.timezone import get_default_timezone
from django.utils.translation import gettext as _

from jobqueue.models import Schedule, ScheduleTick, Task
from jobqueue.schedules.expressions import ClockChange, Cron, Expression, upcoming
from jobqueue.schedules.rows import from_row_time, parse_expression

RECENT = 20
SKIPPED, DELETED = "SKIPPED", "DELETED"  # beside the statuses of tasks


@dataclass(frozen=True, slots=True)
class UpcomingTick:
    """A tick to come."""

    tick_at: datetime  # UTC
    local: datetime  # in the schedule's time zone
    note: str = ""  # how daylight saving affects it; empty if it does not


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """A tick and what became of it, or a range of skipped ticks."""

    tick: ScheduleTick  # the record
    status: str  # that of its task, "SKIPPED", or "DELETED" if the task was deleted
    duration: timedelta | None = None  # from the first start of its task to the end; None if it has not ended

    @property
    def has_task(self) -> bool:
        return self.status not in (SKIPPED, DELETED)


def describe_schedule(row: Schedule) -> str:
    """Return when a schedule is due, in words: "At 08:00, Monday through Friday, Europe/Berlin"."""
    if row.starts_at is not None and row.starts_at == row.ends_at:
        moment = from_row_time(row.starts_at).astimezone(get_default_timezone())
        return _("Once, at %(moment)s") % {"moment": f"{moment:%Y-%m-%d %H:%M:%S %Z}"}
    try:
        return parse_expression(row).describe()
    except ValueError as error:
        return str(error)


def next_ticks(row: Schedule, count: int) -> list[UpcomingTick]:
    """Return the next ticks of a schedule, as if it were not paused. Empty if it has ended or cannot be used."""
    try:
        expression = parse_expression(row)
    except ValueError:
        return []
    if row.next_at is None:
        return []
    first, ends_at = from_row_time(row.next_at).astimezone(UTC), from_row_time(row.ends_at)
    ticks = [first, *upcoming(expression, first, count - 1)][:count]
    return [upcoming_tick(expression, tick) for tick in takewhile(lambda tick: not ends_at or tick <= ends_at, ticks)]


def upcoming_tick(expression: Expression, tick: datetime) -> UpcomingTick:
    """Return a tick with its local time, and a note if daylight saving affects it."""
    if not isinstance(expression, Cron):
        return UpcomingTick(tick, tick.astimezone(get_default_timezone()))
    local = tick.astimezone(ZoneInfo(expression.timezone))
    match expression.clock_change(tick):
        case ClockChange.SKIPPED:
            note = _("On this day, the clock skips the time of the tick. So the tick runs right after the change.")
        case ClockChange.REPEATED:
            note = _("On this day, the clock shows this time twice. The tick runs the first time only.")
        case None:
            note = ""
    return UpcomingTick(tick, local, note)


def recent_ticks(rows: Collection[Schedule], count: int = RECENT) -> dict[int, list[RecordedTick]]:
    """Return the last ticks of each schedule, newest first, by the schedule's id. Three queries."""
    if not rows:
        return {}
    using = next(iter(rows))._state.db
    ticks = ScheduleTick.objects.using(using)
    tasks_of_schedule = ticks.filter(schedule_id=OuterRef("pk")).order_by("-tick_at").values("tick_at")
    # The oldest tick that is wanted of each, so that no others are read.
    schedules = Schedule.objects.using(using).filter(pk__in=[row.pk for row in rows])
    oldest = schedules.annotate(oldest=Subquery(tasks_of_schedule[count - 1 : count])).values_list("pk", "oldest")
    wanted = (Q(schedule_id=pk) if at is None else Q(schedule_id=pk, tick_at__gte=at) for pk, at in oldest)
    last = ticks.filter(reduce(or_, wanted, Q(pk__in=[]))).order_by("schedule_id", "-tick_at", "-pk")
    recent: dict[int, list[RecordedTick]] = {row.pk: [] for row in rows}
    for record in with_tasks(list(last)):
        recent[record.tick.schedule_id].append(record)
    return {pk: newest[:count] for pk, newest in recent.items()}


def history(row: Schedule) -> QuerySet[ScheduleTick]:
    """Return the recorded ticks of a schedule, newest first. `with_tasks()` adds the tasks of a page of them."""
    return ScheduleTick.objects.using(row._state.db).filter(schedule=row).order_by("-tick_at", "-pk")


def with_tasks(ticks: Sequence[ScheduleTick]) -> list[RecordedTick]:
    """Return ticks with what became of their tasks, read in one query."""
    ids = [tick.task_id for tick in ticks if tick.task_id is not None]
    tasks: dict[UUID | None, tuple[str, timedelta | None]] = {}
    if ids:
        # A list has a thousand: rows of three values take a third of the time of models.
        length = ExpressionWrapper(F("finished_at") - F("started_at"), DurationField())
        rows = Task.objects.using(ticks[0]._state.db).filter(pk__in=ids).values_list("pk", "status", length)
        tasks = {pk: (status, duration) for pk, status, duration in rows}
    return [RecordedTick(tick, *tasks.get(tick.task_id, (DELETED if tick.task_id else SKIPPED,))) for tick in ticks]
