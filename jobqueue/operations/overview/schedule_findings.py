"""The findings about schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from shlex import quote
from zoneinfo import ZoneInfo

from django.core import checks
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue.engine import Count, Engine
from jobqueue.models import IS_STOPPED, Schedule, ScheduleQuerySet, ScheduleTick, is_paused
from jobqueue.operations.formatting import duration
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.stats import BackendStats
from jobqueue.schedules.rows import make_policy, parse_ticks, queue_name_of
from jobqueue.values.text import number_text

OVERDUE_LONG = timedelta(seconds=30)  # executors enqueue a tick within a second
PAUSED_LONG = timedelta(days=1)
SKIPPED_OFTEN = 10  # ticks in a row, for one reason
MAX_LISTED = 10  # findings of one check
MAX_ZONES = 1000
ADVICE = {
    ScheduleTick.Reason.OVERLAP: gettext_lazy(
        "Its task takes longer than the interval. Give the task a timeout, or change overlap."
    ),
    ScheduleTick.Reason.MISSED: gettext_lazy("Keep an executor running, or change catch_up."),
    ScheduleTick.Reason.KEY: gettext_lazy("Cancel the task that has the key, or change the key."),
}


@dataclass(frozen=True)
class ScheduleFacts:
    """Facts that the checks of schedules compare with."""

    engine: Engine  # of the backend
    stats: BackendStats  # of its queues and executors
    knowing: Q  # the schedules whose task an executor of their queue knows
    lost_zones: Collection[str]  # time zones of schedules that this host does not have

    @property
    def schedules(self) -> ScheduleQuerySet:
        return self.engine.db.schedules.active().defer("new_task").order_by("name")

    @property
    def running(self) -> ScheduleQuerySet:
        """The schedules that no error has stopped."""
        return self.schedules.exclude(IS_STOPPED)

    @property
    def ticks(self) -> QuerySet[ScheduleTick]:
        return self.engine.db.ticks.filter(trigger=ScheduleTick.Trigger.SCHEDULE)

    def resume(self, row: Schedule) -> str:
        return f"manage.py jobqueue schedules resume --backend {quote(self.stats.backend)} -- {quote(row.name)}"


@dataclass(frozen=True)
class ScheduleCheck:
    """One check. Only the first MAX_LISTED schedules that it finds are read, because a site may have 100,000."""

    find: Callable[[ScheduleFacts], ScheduleQuerySet]  # the schedules with the problem
    describe: Callable[[ScheduleFacts, Schedule], checks.CheckMessage]  # the message about one of them


def title_with_location(row: Schedule) -> str:
    location = f" ({row.declared_at})" if row.declared_at else ""
    return _("Schedule %(name)s") % {"name": row.name} + location


def schedule_findings(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find schedules that do not run, and say why."""
    fleet = ScheduleFacts(engine, stats, _knowing(engine, stats), _lost_zones(engine))
    is_sound = True
    for check in CHECKS:
        rows = check.find(fleet)
        first = list(rows[: MAX_LISTED + 1])
        for row in first[:MAX_LISTED]:
            message = check.describe(fleet, row)
            message.obj = AdminTarget("schedule", pk=row.pk)
            yield message
        if len(first) > MAX_LISTED:
            others = rows.count() - MAX_LISTED
            text = ngettext(
                "Backend %(backend)s: the same problem in %(number)s more schedule.",
                "Backend %(backend)s: the same problem in %(number)s more schedules.",
                others,
            ) % {"backend": stats.backend, "number": Count(others)}
            yield checks.CheckMessage(message.level, text, hint=message.hint, obj=AdminTarget("schedule"))
        is_sound = is_sound and not first
    number = fleet.schedules.count() if is_sound else 0
    if number:
        text = ngettext(
            "Backend %(backend)s: no problem in %(number)s schedule.",
            "Backend %(backend)s: no problem in %(number)s schedules.",
            number,
        )
        yield checks.Info(text % {"backend": stats.backend, "number": Count(number)})


def _knowing(engine: Engine, stats: BackendStats) -> Q:
    """Return the condition for schedules whose task is known to a running executor that serves their queue."""
    alive = engine.db.executors.filter(pk__in=[executor.row.pk for executor in stats.alive])
    names: dict[frozenset[str], set[str]] = {}
    for queues, task_types in alive.values_list("queues", "task_types"):
        names.setdefault(frozenset(queues), set()).update(task_types)
    everywhere = names.pop(frozenset(), set())
    condition = Q(task_type__in=everywhere)
    for queues, own in names.items():
        if own - everywhere:
            condition |= Q(task_type__in=own - everywhere, new_task__queue_name__in=list(queues))
    return condition


def _lost_zones(engine: Engine) -> list[str]:
    """Return the time zones that active schedules have and this host lacks."""
    zones = engine.db.schedules.active().exclude(timezone="").order_by().values_list("timezone", flat=True).distinct()
    return [zone for zone in zones[:MAX_ZONES] if not _has_zone(zone)]


def _has_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found, not a name, or a folder
        return False
    return True


def _stopped(fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    text = _("%(schedule)s: an error has stopped it: %(error)s")
    advice = _("Correct the schedule, then run: %(command)s") % {"command": fleet.resume(row)}
    return checks.Error(text % {"schedule": title_with_location(row), "error": row.pause_reason}, hint=advice)


def _find_unknown_tasks(fleet: ScheduleFacts) -> ScheduleQuerySet:
    return fleet.schedules.exclude(fleet.knowing) if fleet.stats.alive else fleet.schedules.none()


def _unknown_task(_fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    text = _("%(schedule)s: no running executor that serves the queue %(queue)s knows its task %(task)s.")
    advice = _("Start executors with the code of the task, or pause the schedule.")
    values = {"schedule": title_with_location(row), "queue": queue_name_of(row), "task": row.task_type}
    return checks.Error(text % values, hint=advice)


def _overdue(fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    assert row.due_at is not None
    values = {"schedule": title_with_location(row), "time": duration(fleet.stats.now - row.due_at)}
    text = _("%(schedule)s: due %(time)s ago, and not enqueued.")
    if not fleet.stats.alive:
        advice = _("No executor is running. Run: %(command)s") % {"command": "manage.py run_executors"}
    elif reason := _reason_why_unusable(row):
        text = _("%(schedule)s: due %(time)s ago, and not enqueued. This host cannot use it: %(reason)s")
        values["reason"] = reason
        advice = _("Correct the schedule, or give each host of executors what it lacks.")
    else:
        advice = _(
            "Look for errors in the log of executors, and for a session that keeps the row of the schedule locked."
        )
    return checks.Error(text % values, hint=advice)


def _reason_why_unusable(row: Schedule) -> str:
    """Return why this process cannot evaluate a schedule; empty if it can."""
    try:
        parse_ticks(row).next_after(row.created_at)
        make_policy(row)
    except (ValueError, LookupError, ArithmeticError) as error:
        return str(error)
    return ""


def _find_without_zone(fleet: ScheduleFacts) -> ScheduleQuerySet:
    late = Q(due_at__lt=fleet.stats.now - OVERDUE_LONG)
    return fleet.schedules.filter(timezone__in=fleet.lost_zones).exclude(late)  # another check names these


def _without_zone(_fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    text = _("%(schedule)s: this host does not have its time zone %(zone)s.")
    advice = _("Install the time zone: pip install tzdata. Until then, executors of other hosts enqueue its tasks.")
    return checks.Warning(text % {"schedule": title_with_location(row), "zone": row.timezone}, hint=advice)


def _find_without_ticks(fleet: ScheduleFacts) -> ScheduleQuerySet:
    return fleet.running.filter(~Exists(fleet.ticks.filter(schedule_id=OuterRef("pk"))), next_at=None)


def _never_fires(_fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    text = _("%(schedule)s: never fires, because its expression has no tick.")
    advice = _("Correct the expression, starts_at or ends_at, or remove the schedule.")
    return checks.Warning(text % {"schedule": title_with_location(row)}, hint=advice)


def _find_paused(fleet: ScheduleFacts) -> ScheduleQuerySet:
    now = fleet.stats.now
    return fleet.running.filter(is_paused(now), paused_at__lt=now - PAUSED_LONG)


def _paused(fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    assert row.paused_at is not None
    text = _("%(schedule)s: paused for %(time)s. Its ticks are skipped.")
    advice = _("To resume it, run: %(command)s") % {"command": fleet.resume(row)}
    return checks.Warning(
        text % {"schedule": title_with_location(row), "time": duration(fleet.stats.now - row.paused_at)}, hint=advice
    )


def _find_always_skipped(fleet: ScheduleFacts) -> ScheduleQuerySet:
    """Find schedules whose newest tick is a long range of skipped ones. The index contains only such ranges."""
    newer = fleet.ticks.filter(schedule_id=OuterRef("schedule_id"), tick_at__gt=OuterRef("tick_at"))
    skipped = fleet.ticks.filter(~Exists(newer), count__gte=SKIPPED_OFTEN, reason__in=list(ADVICE))
    return fleet.schedules.filter(pk__in=skipped.values("schedule_id"))


def _always_skipped(fleet: ScheduleFacts, row: Schedule) -> checks.CheckMessage:
    newest = fleet.ticks.filter(schedule=row).order_by("-tick_at")[0]
    reason = ScheduleTick.Reason(newest.reason)
    advice = str(ADVICE[reason])
    if reason == ScheduleTick.Reason.OVERLAP and (pk := _live_task(fleet, row)):
        advice += " " + _("See: %(command)s") % {"command": f"manage.py jobqueue show {pk}"}
    text = _("%(schedule)s: its last %(number)s ticks were all skipped. %(reason)s.")
    values = {"schedule": title_with_location(row), "number": number_text(newest.count), "reason": reason.label}
    return checks.Warning(text % values, hint=advice)


def _live_task(fleet: ScheduleFacts, row: Schedule) -> object:
    tasks = fleet.engine.db.tasks.live().filter(schedule_id=row.pk)
    return tasks.order_by("enqueued_at").values_list("pk", flat=True).first()


CHECKS = (
    ScheduleCheck(lambda fleet: fleet.schedules.filter(IS_STOPPED), _stopped),
    ScheduleCheck(_find_unknown_tasks, _unknown_task),
    ScheduleCheck(lambda fleet: fleet.schedules.filter(due_at__lt=fleet.stats.now - OVERDUE_LONG), _overdue),
    ScheduleCheck(_find_without_zone, _without_zone),
    ScheduleCheck(_find_without_ticks, _never_fires),
    ScheduleCheck(_find_paused, _paused),
    ScheduleCheck(_find_always_skipped, _always_skipped),
)
