"""Expressions of the times when a schedule is due: `Cron` and `Every`.

cronsim matches the fields of a cron expression. The rules for changes of the clock are Debian cron's (cron(8)):

* A job at a fixed time inside a skipped hour runs right after it. One inside a repeated hour runs once, the first time.
* A job whose minute or hour begins with `*` runs in every real hour.

cronsim knows these rules too, but misses ticks where the clock changes by half an hour (Lord Howe), and does not apply
them to expressions with seconds. So it works on the clock on the wall here, and this file finds the real moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum, auto
from itertools import islice, takewhile
from typing import Any, Final, Never, Protocol, TypedDict, Unpack
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.conf import settings
from django.utils.translation import gettext_noop

from jobqueue.schedules.describe import fields_in_words, interval_in_words
from jobqueue.values.kinds import LATEST_YEAR

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MIN_INTERVAL: Final = timedelta(seconds=1)
MAX_INTERVAL: Final = timedelta(days=366 * 10)
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
SECOND: Final = timedelta(seconds=1)
MAX_EXPRESSION: Final = 255  # characters
END: Final = datetime(LATEST_YEAR + 1, 1, 1, tzinfo=UTC)
# Two changes of a clock lie further apart than this.
MAX_STEP: Final = timedelta(days=7)


@dataclass(frozen=True)
class ValueProblem:
    """A sentence without a period that says what is wrong with a value. Forms translate it, other places do not."""

    field: str  # the name of the value
    text: str  # with placeholders if there are values
    values: Mapping[str, object] | None = None  # of the placeholders; None if the text has none

    def __str__(self) -> str:
        return self.filled_in(self.text)

    def filled_in(self, text: str) -> str:
        """Return the text, or a translation of it, with the values."""
        return text % self.values if self.values else text


class ClockChange(Enum):
    """An effect of daylight saving on a tick: its time is skipped on that day, or occurs twice."""

    SKIPPED = auto()
    REPEATED = auto()


class Expression(Protocol):
    """The common part of `Cron` and `Every`."""

    def problems(self) -> Iterator[ValueProblem]:
        """Yield what is wrong with it. Nothing where it can be used."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first tick after an aware moment, in UTC. None if there is none within 50 years."""

    def describe(self) -> str:
        """Return it in words."""


def moment_problems(name: str, value: Any) -> Iterator[ValueProblem]:
    """Yield what is wrong with a time of a schedule. None is valid."""
    if value is None:
        return
    if not isinstance(value, datetime) or value.tzinfo is None:
        yield ValueProblem(name, f"{name} must be a datetime with a time zone, not {value!r:.100}")
    elif not EPOCH <= value < END:
        text = gettext_noop("%(name)s must lie between the years %(first)d and %(last)d, not %(value)s")
        values = {"name": name, "first": EPOCH.year, "last": LATEST_YEAR, "value": f"{value!s:.100}"}
        yield ValueProblem(name, text, values)


def upcoming(expression: Expression, after: datetime, count: int) -> list[datetime]:
    """Return the next ticks after a moment, in UTC. Fewer than `count` where the expression has no more."""
    return list(islice(ticks_after(expression, after), count))


def ticks_after(expression: Expression, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks after a moment, in UTC."""
    tick: datetime | None = moment
    while tick and (tick := expression.next_after(tick)):
        yield tick


def last_before(expression: Expression, first: datetime, until: datetime, count: int) -> list[datetime]:
    """
    Return the last ticks before a moment. At least `count` of them must follow `first`.

    Expressions only look ahead. Ticks are a second or more apart, so this doubles the time in which it looks until it
    contains enough, and then halves the difference while it contains too many.
    """
    short, long, span = timedelta(0), until - first, count * MIN_INTERVAL
    while True:
        ticks = takewhile(until.__gt__, ticks_after(expression, max(first, until - span)))
        listed = list(islice(ticks, 2 * count))
        if count <= len(listed) < 2 * count:
            return listed[-count:]
        if len(listed) < count:
            short = span
        else:
            long = span
        span = min(2 * span, short + (long - short) / 2)


class Units(TypedDict, total=False):
    """The units of an `Every`."""

    weeks: float
    days: float
    hours: float
    minutes: float
    seconds: float


# The constructors accept every value: they run at the import of an app, where an error would end each command.


@dataclass(frozen=True, init=False)
class Cron:
    """A cron expression in a time zone.

    `expression` has five fields, six with seconds in front, or is a name such as `@daily`. Fields take numbers, names
    (`mon`, `jan`), `*`, lists, ranges, steps, `L`, `LW` and `#`. If either the day of the month or the day of the week
    begins with `*`, both must match; otherwise one of them is enough. `timezone` is a name such as "Europe/Berlin";
    by default the TIME_ZONE of the settings.
    """

    expression: str
    timezone: str
    unknown: tuple[str, ...] = field(repr=False)  # names of arguments that Cron does not have

    def __init__(self, expression: str = "", timezone: str | None = None, **unknown: Never) -> None:
        object.__setattr__(self, "expression", expression)
        object.__setattr__(self, "timezone", settings.TIME_ZONE if timezone is None else timezone)
        object.__setattr__(self, "unknown", tuple(unknown))

    def problems(self) -> Iterator[ValueProblem]:
        for name in self.unknown:
            yield ValueProblem(
                "expression", f"Cron() takes no argument {name!r:.100}; it takes an expression and timezone"
            )
        values = {"expression": f"{self.expression!r:.100}"}
        if not _is_a(str, self.expression):
            text = gettext_noop("a cron expression must be a text such as '0 8 * * *', not %(expression)s")
            yield ValueProblem("expression", text, values)
        else:
            yield from self._field_problems(values)
        if not (isinstance(self.timezone, str) and _is_zone(self.timezone)):
            text = gettext_noop(
                "this host has no time zone %(zone)s; correct the name, such as 'Europe/Berlin', or install the Python "
                "package tzdata"
            )
            yield ValueProblem("timezone", text, {"zone": f"{self.timezone!r:.100}"})

    def _field_problems(self, values: Mapping[str, object]) -> Iterator[ValueProblem]:
        if len(self.expression) > MAX_EXPRESSION:
            text = gettext_noop("%(expression)s has more than %(most)d characters")
            yield ValueProblem("expression", text, {**values, "most": MAX_EXPRESSION})
        elif self.expression.startswith("@") and self.expression.lower() not in ALIASES:
            text = gettext_noop("%(expression)s is not one of %(names)s")
            yield ValueProblem("expression", text, {**values, "names": ", ".join(ALIASES)})
        elif len(self._fields) not in (5, 6):
            text = gettext_noop(
                "%(expression)s has %(number)d fields; expected minute hour day-of-month month day-of-week, with an "
                "optional field for seconds in front"
            )
            yield ValueProblem("expression", text, {**values, "number": len(self._fields)})
        else:
            try:
                CronSim(" ".join(self._fields), EPOCH.replace(tzinfo=None))
            except CronSimError as error:
                text = gettext_noop(
                    "the %(name)s of %(expression)s is not valid; expected minute hour day-of-month month day-of-week, "
                    "with an optional field for seconds in front"
                )
                yield ValueProblem("expression", text, {**values, "name": str(error).removeprefix("Bad ").lower()})

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first tick after an aware moment, in UTC. None if there is none within 50 years."""
        return self._next_real(moment) if self._runs_in_every_hour else self._next_fixed(moment)

    def describe(self) -> str:
        """Return it in words: "At 08:00, Monday through Friday, Europe/Berlin"."""
        if "#" in (weekday := self._fields[-1]) and "," in weekday:  # cron-descriptor leaves out which one is meant
            return f"{self.expression}, {self.timezone}"
        return f"{fields_in_words(' '.join(self._fields))}, {self.timezone}"

    def clock_change(self, tick: datetime) -> ClockChange | None:
        """Return why a tick is not simply at its time of the day. None for most, and if it runs in every real hour."""
        local = tick.astimezone(ZoneInfo(self.timezone))
        if self._runs_in_every_hour:
            return None
        if next(self._walls_after(local - SECOND), None) != local.replace(tzinfo=None):
            return ClockChange.SKIPPED
        is_repeated = local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()
        return ClockChange.REPEATED if is_repeated else None

    @property
    def _fields(self) -> list[str]:
        return ALIASES.get(self.expression.lower(), self.expression).split()

    @property
    def _runs_in_every_hour(self) -> bool:
        minute, hour = self._fields[-5:-3]
        return minute.startswith("*") or hour.startswith("*")

    def _next_fixed(self, moment: datetime) -> datetime | None:
        """Take each time on the wall once: the first of two, or the end of the gap that skips it."""
        zone = ZoneInfo(self.timezone)
        for wall in self._walls_after(moment.astimezone(zone)):
            tick = _first_real(wall, zone)
            if tick > moment:
                return tick
        return None

    def _next_real(self, moment: datetime) -> datetime | None:
        """Take every moment at which the wall matches. Between two changes of the clock, the offset is constant."""
        zone = ZoneInfo(self.timezone)
        start = searched = moment.astimezone(UTC).replace(microsecond=0)
        while True:
            offset = _offset(searched, zone)
            wall = next(self._walls_after(start + offset), None)
            if wall is None:
                return None
            tick = wall.replace(tzinfo=UTC) - offset
            change = _first_change(searched, tick, zone)
            if change is None:
                return tick
            # The change itself may be a tick.
            start, searched = change - timedelta(seconds=1), change

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        return CronSim(" ".join(self._fields), wall.replace(tzinfo=None))


@dataclass(frozen=True, init=False)
class Every:
    """
    A fixed interval: `Every(minutes=5)`, `Every(timedelta(hours=1))`.

    Restarts and deploys do not move the ticks, and `Every(hours=1)` runs on the hour.
    """

    interval: timedelta  # between a second and ten years
    anchor: datetime  # the moment from which ticks are counted, by default the start of 1970 in UTC

    def __init__(self, interval: timedelta | None = None, *, anchor: datetime = EPOCH, **units: Unpack[Units]) -> None:
        object.__setattr__(self, "interval", _parse_interval(interval, units))
        object.__setattr__(self, "anchor", anchor)

    def problems(self) -> Iterator[ValueProblem]:
        if not _is_a(timedelta, self.interval):
            text = f"an interval must be a timedelta or units such as minutes=5, not {self.interval!r:.100}"
            yield ValueProblem("interval", text)
        elif not MIN_INTERVAL <= self.interval <= MAX_INTERVAL:
            text = gettext_noop("an interval must be between a second and ten years, not %(interval)s")
            yield ValueProblem("interval", text, {"interval": self.interval})
        if not _is_a(datetime, self.anchor):
            yield ValueProblem("anchor", f"anchor must be a datetime with a time zone, not {self.anchor!r:.100}")
            return
        yield from moment_problems("anchor", self.anchor)

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first tick after an aware moment, in UTC."""
        passed = (moment - self.anchor) // self.interval
        return (self.anchor + (passed + 1) * self.interval).astimezone(UTC)

    def describe(self) -> str:
        """Return it in words: "Every 5 minutes"."""
        return interval_in_words(self.interval)


def _is_a(kind: type, value: object) -> bool:
    """Return isinstance(), for values whose types only a type checker has checked."""
    return isinstance(value, kind)


def _parse_interval(interval: Any, units: Mapping[str, Any]) -> Any:
    """Return the interval. Values that make none are returned as they are, and problems() describes them."""
    if interval is not None:
        return {"interval": interval, **units} if units else interval
    with suppress(TypeError, ValueError, OverflowError):
        return timedelta(**units)
    return units


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _first_real(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment, in UTC, at which the wall shows this time, or the end of the gap that skips it."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    # In a gap, fold=1 means a moment before the change, fold=0 one after it (PEP 495).
    return _first_change(second, first, zone) or first


def _first_change(since: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the first moment after `since`, up to `until`, with another offset. Both are whole seconds."""
    before = _offset(since, zone)
    while since < until:
        step = min(since + MAX_STEP, until)
        if _offset(step, zone) != before:
            while (middle := since + (step - since) // 2 // SECOND * SECOND) != since:
                since, step = (since, middle) if _offset(middle, zone) != before else (middle, step)
            return step
        since = step
    return None


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
