"""Times, errors and names as text. Only the active language influences the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.utils.dates import WEEKDAYS_ABBR
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.timezone import get_default_timezone, is_aware, localtime
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from jobqueue.models import Executor, Queue, Schedule, Task
from jobqueue.schedules.rows import from_row_time

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    Text = StrOrPromise
else:
    Text = str | Promise

HEADLINE_CHARACTERS = 200


def duration(length: timedelta | float) -> str:
    """Return a duration, or seconds, in one unit: 250 ms, 40 s, 14 min, 3 h, 5 d."""
    seconds = max(0.0, length.total_seconds() if isinstance(length, timedelta) else length)
    if seconds < 0.9995:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    if seconds < 100:
        return _("%(number)d s") % {"number": round(seconds)}
    if seconds < 100 * 60:
        return _("%(number)d min") % {"number": round(seconds / 60)}
    if seconds < 48 * 3600:
        return _("%(number)d h") % {"number": round(seconds / 3600)}
    return _("%(number)d d") % {"number": round(seconds / 86_400)}


def moment_in_words(moment: datetime) -> str:
    """Return date and time in the site's format and zone; on the command line, as clock_time() does."""
    if get_language() is None:
        return clock_time(moment)
    return date_format(local(moment), "DATETIME_FORMAT")


def clock_time(moment: datetime) -> str:
    """Return date, time and zone as the command line shows them: 2026-11-24 08:00:00 CET."""
    return f"{local(moment):%Y-%m-%d %H:%M:%S %Z}".rstrip()


def local(moment: datetime) -> datetime:
    """Return a moment in the site's time zone."""
    return localtime(moment) if is_aware(moment) else moment


def wall_time(at: datetime, zone: str = "") -> str:
    """Return a moment on the clock of a time zone, by default the site's: Tue 2026-11-24 08:00 CET."""
    try:
        local = from_row_time(at).astimezone(ZoneInfo(zone) if zone else get_default_timezone())
    except (KeyError, ValueError, OSError):  # not the name of a zone
        local = from_row_time(at)
    precision = "seconds" if local.second else "minutes"
    clock = local.replace(tzinfo=None).isoformat(" ", precision)  # strftime() takes three times as long
    return f"{WEEKDAYS_ABBR[local.weekday()]} {clock} {local.tzname()}"


def ready_since(task: Task, aging_seconds: float) -> datetime:
    """Return the moment when a READY task became ready. Its rank contains it."""
    since = task.rank + timedelta(seconds=task.priority * aging_seconds)
    return max(since, task.enqueued_at)


def when(task: Task, now: datetime, aging_seconds: float, executor_name: str | None) -> tuple[str, datetime | None]:
    """Return the time that matters in the task's state: as text, and the moment itself."""
    moment: datetime | None
    match task.status:
        case Task.Status.READY:
            text, moment = _("waiting %(time)s"), ready_since(task, aging_seconds)
        case Task.Status.BLOCKED:
            text, moment = _("blocked %(time)s"), ready_since(task, aging_seconds)
        case Task.Status.SCHEDULED | Task.Status.SUSPENDED if task.wake_at is not None and task.wake_at <= now:
            text, moment = _("due %(time)s ago"), task.wake_at
        case Task.Status.SCHEDULED:
            text, moment = _("retries in %(time)s") if task.attempts else _("runs in %(time)s"), task.wake_at
        case Task.Status.AWAITING_CODE:
            text, moment = _("awaits code %(time)s"), task.awaits_code_since
        case Task.Status.SUSPENDED if task.wake_at is not None:
            text, moment = _("wakes in %(time)s"), task.wake_at
        case Task.Status.SUSPENDED:
            text, moment = _("suspended %(time)s"), task.last_attempted_at or task.enqueued_at
        case Task.Status.RUNNING:
            text = _("running %(time)s on %(executor)s") if executor_name else _("running %(time)s")
            moment = task.claimed_at or task.last_attempted_at or task.enqueued_at
        case _:
            text, moment = _("%(time)s ago"), task.finished_at
    if moment is None:
        return "", None
    return text % {"time": duration(abs(now - moment)), "executor": executor_name}, moment


def time_run(task: Any) -> timedelta | None:
    """
    Return how long the last attempt of an ended task took; None if none was started.

    A failed attempt has stored the time of its body. That of a successful one ends with its commit.
    """
    if task.status == Task.Status.FAILED and task.error_run_seconds is not None:
        return timedelta(seconds=float(task.error_run_seconds))
    if task.finished_at is None or task.last_attempted_at is None:
        return None
    length: timedelta = task.finished_at - task.last_attempted_at
    return length


def clock_text(at: datetime, now: datetime) -> str:
    """Return a moment on the site's clock: the time if it is of today, else the date, too."""
    there = local(at)
    return f"{there:%H:%M:%S}" if there.date() == local(now).date() else f"{there:%Y-%m-%d %H:%M}"


def class_name(error: Mapping[str, Any]) -> str:
    """Return the name of an error's class without its module."""
    return str(error.get("exception_class_path") or "").rpartition(".")[2]


def attempt_number(task: Task) -> int | None:
    """
    Return the number of the running or the last attempt: since the last requeue, and of an actor's poll.

    None if none has started, and between the polls of an actor. The column counts failed attempts.
    """
    if task.status in (Task.Status.RUNNING, Task.Status.SUCCESSFUL):
        return task.attempts + 1
    return task.attempts or None


def attempts_text(task: Task) -> str:
    """Return the attempt's number and the maximum, such as 2 of 5; nothing before the first attempt."""
    number = attempt_number(task)
    return "" if number is None else _("%(number)d of %(max)d") % {"number": number, "max": task.max_attempts}


def headline(class_path: str | None, message: str | None) -> str:
    """Return an error's class and the first line of its message."""
    name = str(class_path or "").rpartition(".")[2]
    lines = str(message or "").strip().splitlines()
    text = ": ".join(part for part in (name, lines[0].strip() if lines else "") if part)
    return shortened(text)


def either(names: Sequence[str]) -> str:
    """Join names: Shipped, Returned or CancelOrder."""
    if len(names) < 2:
        return "".join(names)
    return _("%(names)s or %(last)s") % {"names": ", ".join(names[:-1]), "last": names[-1]}


def shortened(text: str, characters: int = HEADLINE_CHARACTERS) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def short_type(task_type: str) -> str:
    """Return the last component of a task's name."""
    return task_type.rpartition(".")[2] or task_type


def short_id(identifier: object) -> str:
    """Shorten a UUIDv7. It begins with the time, so the end distinguishes neighbours."""
    text = str(identifier)
    return f"{text[:8]}…{text[-4:]}"


def served(executor: Executor) -> list[str]:
    """Return the queues of an executor, with its own limits; an empty list if it serves all."""
    limits = executor.queue_limits
    return [f"{name} (max {limits[name]})" if name in limits else name for name in executor.queues]


def describe_pause(queue: Queue) -> str:
    """Describe the pause of a queue: user, reason and end."""
    subject = _("Queue %(name)s is paused by %(user)s.") if queue.paused_by else _("Queue %(name)s is paused.")
    return _describe_pause(queue, subject)


def describe_schedule_pause(schedule: Schedule) -> str:
    """Describe the pause of a schedule, which a badge has named: user, reason and end."""
    return _describe_pause(schedule, _("By %(user)s.") if schedule.paused_by else "")


def _describe_pause(row: Queue | Schedule, subject: str) -> str:
    sentences = [
        subject,
        _("Reason: %(reason)s.") if row.pause_reason else "",
        _("It resumes automatically (%(moment)s).") if row.resume_at is not None else "",
    ]
    return " ".join(filter(None, sentences)) % {
        "name": row.name,
        "user": row.paused_by,
        "reason": row.pause_reason.removesuffix("."),
        "moment": moment_in_words(row.resume_at) if row.resume_at is not None else "",
    }
