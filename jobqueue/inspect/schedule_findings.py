"""The findings about schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from shlex import quote

from django.core import checks
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue.engine.engine import Engine
from jobqueue.inspect.formatting import duration, number_text
from jobqueue.inspect.links import Rows
from jobqueue.inspect.queries import Count
from jobqueue.inspect.stats import BackendStats
from jobqueue.models import Schedule, ScheduleTick
from jobqueue.schedule_models import STOPPED_BY

OVERDUE_LONG = timedelta(seconds=30)  # executors enqueue a tick within a second
PAUSED_LONG = timedelta(days=1)
SKIPPED_OFTEN = 10  # ticks in a row, for one reason
MAX_LISTED = 10  # findings of one check
ADVICE = {
    ScheduleTick.Reason.OVERLAP: gettext_lazy(
        "Its task takes longer than the interval. Give the task a timeout, or change overlap."
    ),
    ScheduleTick.Reason.MISSED: gettext_lazy("Keep an executor running, or change catch_up."),
    ScheduleTick.Reason.KEY: gettext_lazy("Cancel the task that has the key, or change the key."),
}


@dataclass(frozen=True)
class Checked:
    """A schedule, its newest tick, and what its checks compare it with. known_tasks: those of running executors."""

    row: Schedule
    newest: ScheduleTick | None
    engine: Engine
    stats: BackendStats
    known_tasks: Collection[str]

    @property
    def title(self) -> str:
        place = f" ({self.row.declared_at})" if self.row.declared_at else ""
        return _("Schedule %(name)s") % {"name": self.row.name} + place

    @property
    def resume(self) -> str:
        backend = f"--backend {quote(self.stats.backend)}"
        return f"manage.py jobqueue schedules resume {backend} -- {quote(self.row.name)}"

    @property
    def is_stopped(self) -> bool:
        return self.row.paused_at is not None and self.row.paused_by == STOPPED_BY


def schedule_findings(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find schedules that do not run, and say why."""
    rows = list(engine.db.schedules.active().defer("new_task").order_by("name"))
    newest = engine.schedules.newest_ticks([row.pk for row in rows])
    alive = engine.executors.filter(pk__in=[executor.row.pk for executor in stats.alive])
    known_tasks = set().union(*alive.values_list("task_types", flat=True))
    schedules = [Checked(row, newest.get(row.pk), engine, stats, known_tasks) for row in rows]
    is_sound = True
    for check in (_stopped, _unknown_task, _overdue, _never_fires, _paused, _always_skipped):
        found = [message for schedule in schedules for message in _linked(schedule, check)]
        yield from found[:MAX_LISTED]
        if others := found[MAX_LISTED:]:
            text = ngettext(
                "Backend %(backend)s: the same problem in %(number)s more schedule.",
                "Backend %(backend)s: the same problem in %(number)s more schedules.",
                len(others),
            ) % {"backend": stats.backend, "number": Count(len(others))}
            yield checks.CheckMessage(others[0].level, text, hint=others[0].hint, obj=Rows("schedule"))
        is_sound = is_sound and not found
    if rows and is_sound:
        text = ngettext(
            "Backend %(backend)s: no problem in %(number)s schedule.",
            "Backend %(backend)s: no problem in %(number)s schedules.",
            len(rows),
        )
        yield checks.Info(text % {"backend": stats.backend, "number": Count(len(rows))})


def _linked(
    schedule: Checked, check: Callable[[Checked], Iterator[checks.CheckMessage]]
) -> Iterator[checks.CheckMessage]:
    for message in check(schedule):
        message.obj = Rows("schedule", pk=schedule.row.pk)
        yield message


def _stopped(schedule: Checked) -> Iterator[checks.CheckMessage]:
    if schedule.is_stopped:
        text = _("%(schedule)s: an error has stopped it: %(error)s")
        advice = _("Correct the schedule, then run: %(command)s") % {"command": schedule.resume}
        yield checks.Error(text % {"schedule": schedule.title, "error": schedule.row.pause_reason}, hint=advice)


def _unknown_task(schedule: Checked) -> Iterator[checks.CheckMessage]:
    if schedule.known_tasks and schedule.row.task_type not in schedule.known_tasks:
        text = _("%(schedule)s: no running executor knows its task %(task)s.")
        advice = _("Start executors with the code of the task, or pause the schedule.")
        yield checks.Error(text % {"schedule": schedule.title, "task": schedule.row.task_type}, hint=advice)


def _overdue(schedule: Checked) -> Iterator[checks.CheckMessage]:
    due_at, now = schedule.row.due_at, schedule.stats.now
    if due_at is not None and now - due_at > OVERDUE_LONG:
        text = _("%(schedule)s: due %(time)s ago, and not enqueued.")
        advice = _(
            "Look for errors in the log of executors, and for a session that keeps the row of the schedule locked."
        )
        if not schedule.stats.alive:
            advice = _("No executor is running. Run: %(command)s") % {"command": "manage.py run_executors"}
        yield checks.Error(text % {"schedule": schedule.title, "time": duration(now - due_at)}, hint=advice)


def _never_fires(schedule: Checked) -> Iterator[checks.CheckMessage]:
    if schedule.row.next_at is None and schedule.newest is None and not schedule.is_stopped:
        text = _("%(schedule)s: never fires, because its expression has no tick.")
        advice = _("Correct the expression, starts_at or ends_at, or remove the schedule.")
        yield checks.Warning(text % {"schedule": schedule.title}, hint=advice)


def _paused(schedule: Checked) -> Iterator[checks.CheckMessage]:
    row, now = schedule.row, schedule.stats.now
    is_over = row.resume_at is not None and row.resume_at <= now
    if row.paused_at is None or schedule.is_stopped or is_over or now - row.paused_at <= PAUSED_LONG:
        return
    text = _("%(schedule)s: paused for %(time)s. Its ticks are skipped.")
    advice = _("To resume it, run: %(command)s") % {"command": schedule.resume}
    yield checks.Warning(text % {"schedule": schedule.title, "time": duration(now - row.paused_at)}, hint=advice)


def _always_skipped(schedule: Checked) -> Iterator[checks.CheckMessage]:
    newest = schedule.newest
    if newest is None or newest.reason not in ADVICE or newest.count < SKIPPED_OFTEN:
        return
    reason = ScheduleTick.Reason(newest.reason)
    advice = str(ADVICE[reason])
    if reason == ScheduleTick.Reason.OVERLAP and (pk := _live_task(schedule)):
        advice += " " + _("See: %(command)s") % {"command": f"manage.py jobqueue show {pk}"}
    text = _("%(schedule)s: its last %(number)s ticks were all skipped. %(reason)s.")
    values = {"schedule": schedule.title, "number": number_text(newest.count), "reason": reason.label}
    yield checks.Warning(text % values, hint=advice)


def _live_task(schedule: Checked) -> object:
    tasks = schedule.engine.tasks.live().filter(schedule_id=schedule.row.pk)
    return tasks.order_by("enqueued_at").values_list("pk", flat=True).first()
