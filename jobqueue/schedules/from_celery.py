"""
Celery's schedule objects as `Cron` and `Every`, and its priorities as ours.

Schedules are read by their attributes, so Celery is not imported.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from cronsim import CronSim, CronSimError

from jobqueue.schedules.expressions import EPOCH, Cron, Every

# Celery's name of each field, cronsim's name, and how many values it has.
FIELDS: Final = (
    ("minute", "minutes", 60),
    ("hour", "hours", 24),
    ("day_of_month", "days", 31),
    ("month_of_year", "months", 12),
    ("day_of_week", "weekdays", 7),
)
# The days of the month with the first, second, ... of a weekday.
WEEKS: Final = [set(range(first, min(first + 7, 32))) for first in range(1, 32, 7)]
# With these brokers, 0 is the highest priority.
REVERSED_BROKERS: Final = ("redis", "rediss", "sentinel")
HIGHEST: Final = 100
ONCE: Final = timedelta(days=1)  # the interval of a schedule with one tick; any interval would do


def expression_from_celery(schedule: Any, timezone: str, anchor: datetime | None = None) -> Cron | Every:
    """
    Return a schedule of Celery: a crontab, an interval, or seconds. Raises ValueError if it has no counterpart.

    timezone: of a crontab that has none. anchor: a moment at which an interval was due, by default 1970 in UTC.
    """
    interval = getattr(schedule, "run_every", schedule)
    if isinstance(interval, int | float) and not isinstance(interval, bool):
        interval = timedelta(seconds=interval)
    if isinstance(interval, timedelta):
        return Every(interval, anchor=anchor or EPOCH)
    if all(hasattr(schedule, name) for name, *_ in FIELDS):
        return Cron(cron_text(schedule), timezone)
    raise ValueError(f"its schedule is a {type(schedule).__name__}, which has no counterpart: {schedule!r:.100}")


def cron_text(crontab: Any) -> str:
    """
    Return the five fields of Celery's crontab. Raises ValueError if cron cannot express it.

    In Celery the day of the month and the day of the week must both match. In cron one of them is enough, unless one
    begins with `*`.
    """
    minute, hour, day, month, weekday = (_field_text(crontab, *names) for names in FIELDS)
    if not day.startswith("*") and not weekday.startswith("*"):
        weeks = [number for number, days in enumerate(WEEKS, 1) if days <= crontab.day_of_month]
        if set().union(*(WEEKS[number - 1] for number in weeks)) != crontab.day_of_month:
            raise ValueError(
                f"in Celery both the day of the month ({day}) and the day of the week ({weekday}) must match, in cron "
                "one of them is enough. Schedule one of them, and let the task check the other"
            )
        weekday = ",".join(f"{week_day}#{number}" for number in weeks for week_day in sorted(crontab.day_of_week))
        day = "*"
    return f"{minute} {hour} {day} {month} {weekday}"


def _field_text(crontab: Any, name: str, cronsim_name: str, size: int) -> str:
    """Return a field as people wrote it, where cron reads it as Celery does. Otherwise list its values."""
    values = getattr(crontab, name)
    if len(values) == size:
        return "*"
    written = str(getattr(crontab, f"_orig_{name}", ""))
    fields = [written if field_name == name else "*" for field_name, *_ in FIELDS]
    try:
        read = getattr(CronSim(" ".join(fields), EPOCH), cronsim_name)
    except CronSimError:
        read = set()
    return written if read == values else ",".join(map(str, sorted(values)))


def priority_from_celery(priority: int, broker_url: str) -> int:
    """Return a priority of Celery as ours. Celery's tasks without one have 0, which Redis takes for the highest."""
    sign = -1 if broker_url.partition(":")[0].partition("+")[0] in REVERSED_BROKERS else 1
    return max(-HIGHEST, min(HIGHEST, sign * int(priority)))
