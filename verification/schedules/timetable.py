"""The ticks of a schedule, counted one by one. An oracle for `Cron` and `Every` that shares no code with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo

DAY: Final = timedelta(days=1)
# No zone of the simulation changes its clock twice within a day.
MARGIN: Final = timedelta(days=2)
MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True)
class Period:
    """A period without a change of the clock in one zone. Times are naive UTC."""

    start: datetime
    end: datetime
    offset: timedelta


@dataclass(frozen=True)
class EveryTimes:
    """Ticks at a fixed distance from an anchor."""

    interval: timedelta
    anchor: datetime

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the ticks from `start` to `end`, both included."""
        tick = self.anchor + (start - self.anchor) // self.interval * self.interval
        while tick <= end:
            if tick >= start:
                yield tick
            tick += self.interval


@dataclass(frozen=True)
class CronTimes:
    """
    Ticks at times on the wall. `expression` and the sets of numbers say the same.

    has_any_time: whether minute or hour begins with `*`. Then it runs whenever the wall shows such a time; otherwise
    once for each time on the wall. matches: whether it runs on a day.
    """

    expression: str
    timezone: str
    seconds: Collection[int]
    minutes: Collection[int]
    hours: Collection[int]
    matches: Callable[[date], bool]
    has_any_time: bool

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the ticks from `start` to `end`, both included."""
        moments = {
            tick.replace(tzinfo=UTC)
            for wall in self._walls(start.replace(tzinfo=None) - MARGIN, end.replace(tzinfo=None) + MARGIN)
            for tick in self._moments(wall)
        }
        yield from sorted(tick for tick in moments if start <= tick <= end)

    def _walls(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for number in range((end.date() - start.date()).days + 1):
            day = start.date() + number * DAY
            if self.matches(day):
                for hour, minute, second in product(self.hours, self.minutes, self.seconds):
                    yield datetime(day.year, day.month, day.day, hour, minute, second)

    def _moments(self, wall: datetime) -> list[datetime]:
        around = [period for period in periods(self.timezone) if period.start - MARGIN <= wall <= period.end + MARGIN]
        existing = [wall - period.offset for period in around if period.start <= wall - period.offset < period.end]
        if self.has_any_time:
            return existing
        if existing:
            return existing[:1]
        # The clock skips this time. The tick is at the moment of the change.
        return [period.start for period in around if period.start - MARGIN < wall - period.offset < period.start][-1:]


@lru_cache
def periods(name: str) -> list[Period]:
    """Return the periods of a zone in the years of the simulation. Clocks change at full minutes."""
    zone, moment = ZoneInfo(name), datetime(2025, 1, 1, tzinfo=UTC)
    spans: list[Period] = []
    start, offset = moment, moment.astimezone(zone).utcoffset()
    while moment.year < 2029:
        step = moment + timedelta(hours=6)
        if step.astimezone(zone).utcoffset() != offset:
            while (moment + MINUTE).astimezone(zone).utcoffset() == offset:
                moment += MINUTE
            step = moment + MINUTE
            spans.append(Period(start.replace(tzinfo=None), step.replace(tzinfo=None), offset or timedelta()))
            start, offset = step, step.astimezone(zone).utcoffset()
        moment = step
    spans.append(Period(start.replace(tzinfo=None), moment.replace(tzinfo=None), offset or timedelta()))
    return spans
