"""Random schedules: expressions with ticks that the timetable can count, and all other columns of a row."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec

from jobqueue.schedules.expressions import EPOCH, Cron, Every
from jobqueue.schedules.rows import expression_columns
from jobqueue.values.ids import new_id
from jobqueue.values.policies import CatchUp, Overlap
from jobqueue.values.records import NewTask
from verification.schedules.timetable import CronTimes, EveryTimes

TASK_TYPE: Final = "verification.schedules"
KEYS: Final = ("report", "import")
ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/Sao_Paulo",
    "Pacific/Chatham",
)
# Text of a field, and its numbers. The hours are those at which clocks change, and others.
SECONDS: Final = {"0": [0], "30": [30], "*/20": [0, 20, 40], "7,8": [7, 8]}
MINUTES: Final = {"0": [0], "30": [30], "*/15": [0, 15, 30, 45], "10-12": [10, 11, 12], "5,59": [5, 59], "45": [45]}
HOURS: Final = {
    "0": [0],
    "1": [1],
    "2": [2],
    "1-3": [1, 2, 3],
    "8,20": [8, 20],
    "*": range(24),
    "*/6": [0, 6, 12, 18],
}
MONTHS: Final = {"*": range(1, 13), "mar,apr": [3, 4], "9-11": [9, 10, 11], "1": [1]}
DAYS: Final = {"*": None, "1": {1}, "15,31": {15, 31}, "L": {-1}}
WEEKDAYS: Final = {"*": None, "1-5": {1, 2, 3, 4, 5}, "sun": {0}, "5#3": {5}}
THIRD_WEEK: Final = range(15, 22)
MAX_TICKS: Final = 60  # of one timing


@dataclass(frozen=True)
class RandomTiming:
    """When a schedule is due: the columns of its row, and the same as times that can be counted."""

    columns: dict[str, Any]
    times: CronTimes | EveryTimes
    starts_at: datetime | None
    ends_at: datetime | None

    def ticks(self, after: datetime, end: datetime) -> list[datetime]:
        """Return the ticks after a moment, up to `end`."""
        start = max(after, self.starts_at) if self.starts_at else after
        end = min(end, self.ends_at) if self.ends_at else end
        return [tick for tick in self.times.between(start, end) if tick > after]


def random_timing(
    random: Random, now: datetime, end: datetime, times: CronTimes | EveryTimes | None = None
) -> RandomTiming:
    """Return a random timing of at most `MAX_TICKS` ticks until `end`, by default with random times."""
    if times is None:
        times = random_every(random) if random.random() < 0.3 else random_cron(random)
    starts_at, ends_at = None, None
    start, length = now, timedelta(seconds=20)
    while length < end - start and len([*times.between(start, start + length)]) < MAX_TICKS / 3:
        length *= 3
    is_frequent = length < end - start
    if is_frequent or random.random() < 0.2:
        latest = (end - now).total_seconds() if is_frequent else 10 * 86_400
        starts_at = start = (now + timedelta(seconds=random.uniform(-86_400, latest))).replace(microsecond=0)
    if is_frequent or random.random() < 0.1:
        ends_at = max(start, now) + length
    if isinstance(times, CronTimes):
        columns = expression_columns(Cron(times.expression, times.timezone))
    else:
        columns = expression_columns(Every(times.interval, anchor=times.anchor))
    return RandomTiming(columns | {"starts_at": starts_at, "ends_at": ends_at}, times, starts_at, ends_at)


def random_every(random: Random) -> EveryTimes:
    seconds = random.choice([1, 7, 60, 300, 3600, 86_400, 86_400 * 7, 12_345])
    anchor = random.choice([EPOCH, datetime.fromisoformat("2026-02-03T04:05:06.789012Z")])
    return EveryTimes(timedelta(seconds=seconds), anchor)


def random_cron(random: Random) -> CronTimes:
    second = random.choice([*SECONDS]) if random.random() < 0.25 else ""
    minute, hour, month = (random.choice([*choices]) for choices in (MINUTES, HOURS, MONTHS))
    day = random.choice([*DAYS]) if random.random() < 0.4 else "*"
    weekday = random.choice([*WEEKDAYS]) if random.random() < 0.4 else "*"
    return CronTimes(
        expression=f"{second} {minute} {hour} {day} {month} {weekday}".strip(),
        timezone=random.choice(ZONES),
        seconds=SECONDS[second or "0"],
        minutes=MINUTES[minute],
        hours=HOURS[hour],
        matches=lambda date: date.month in MONTHS[month] and matches_day(date, day, weekday),
        has_any_time=minute.startswith("*") or hour.startswith("*"),
    )


def matches_day(date: date, day: str, weekday: str) -> bool:
    """Return whether a date matches. If both fields are restricted, one is enough."""
    days, weekdays = DAYS[day], WEEKDAYS[weekday]
    is_last = date.day == monthrange(date.year, date.month)[1]
    is_day = days is None or date.day in days or (-1 in days and is_last)
    is_weekday = weekdays is None or date.isoweekday() % 7 in weekdays
    if weekday.endswith("#3"):
        is_weekday &= date.day in THIRD_WEEK
    return is_day or is_weekday if days and weekdays else is_day and is_weekday


def random_policies(random: Random) -> dict[str, Any]:
    """Return the columns that say what happens to a tick."""
    overlap = random.choice([*Overlap])
    catch_up = random.choice([*CatchUp])
    if catch_up == CatchUp.ALL:  # the only one that declarations allow with it
        overlap = Overlap.ALLOW
    return {
        "overlap": overlap.value,
        "catch_up": catch_up.value,
        "max_catch_up": random.choice([1, 3, 100]),
        "catch_up_window_seconds": random.choice([None, None, 60.0, 7200.0, 86_400.0]),
        "jitter_seconds": random.choice([0.0, 0.0, 5.0, 600.0, 86_400.0]),
        "new_task": random_task(random),
        "task_type": TASK_TYPE,
    }


def random_task(random: Random) -> dict[str, Any]:
    key = random.choice(KEYS) if random.random() < 0.15 else None
    task: dict[str, Any] = msgspec.to_builtins(NewTask(id=new_id(), task_type=TASK_TYPE, key=key))
    return task
