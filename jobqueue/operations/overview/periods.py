"""The counters of minutes and hours, as points of a chart and as sums of a range."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple, Self

from django.db.models import Sum

from jobqueue.engine import Engine
from jobqueue.models import CounterPeriod
from jobqueue.values.counters import EDGES, Length, Scope

NUMBERS = ("submitted", "attempts", "completed", "failed", "retries", "dead", "lost", "wait_seconds", "run_seconds")
HISTOGRAMS = ("waits", "runs")
SUMMED = (*NUMBERS, *HISTOGRAMS)
MAX_TASK_TYPES = 1000


class Range(StrEnum):
    """The time that a chart covers."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


class Steps(NamedTuple):
    """The points of a range: of which counters, how many minutes each, and how many."""

    length: Length
    minutes: int
    number: int


STEPS = {
    Range.HOUR: Steps(Length.MINUTE, 1, 60),
    Range.DAY: Steps(Length.MINUTE, 15, 96),
    Range.WEEK: Steps(Length.HOUR, 60, 168),
}


@dataclass(slots=True, kw_only=True)
class Counts:
    """Sums of counters. Histograms have one number for each bucket of seconds."""

    submitted: int = 0  # tasks created
    attempts: int = 0  # that ended
    completed: int = 0  # tasks that ended SUCCESSFUL
    failed: int = 0  # attempts that failed
    retries: int = 0  # failed attempts that another attempt follows
    dead: int = 0  # tasks that ended FAILED
    lost: int = 0  # tasks rescued from a lost executor
    wait_seconds: float = 0.0  # the sum of `waits`
    run_seconds: float = 0.0  # the sum of `runs`
    waits: list[int] = field(default_factory=list)  # attempts, by the seconds from READY to the claim
    runs: list[int] = field(default_factory=list)  # attempts, by the seconds of their body

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]], **more: Any) -> Self:
        """Return the sums of rows with the columns SUMMED. more: other attributes."""
        columns = dict(zip(SUMMED, zip(*rows, strict=True), strict=False))  # none without rows
        for name, values in columns.items():
            is_histogram = name in HISTOGRAMS
            more[name] = [*map(sum, zip_longest(*values, fillvalue=0))] if is_histogram else sum(values)
        return cls(**more)

    @property
    def ended(self) -> int:
        return self.completed + self.dead

    @property
    def failure_rate(self) -> float | None:
        """The part of the ended tasks that failed; None without any."""
        return self.dead / self.ended if self.ended else None

    @property
    def mean_wait(self) -> float | None:
        return self.wait_seconds / sum(self.waits) if sum(self.waits) else None

    @property
    def mean_run(self) -> float | None:
        return self.run_seconds / sum(self.runs) if sum(self.runs) else None

    def wait(self, share: float) -> float | None:
        return quantile(self.waits, share)

    def run(self, share: float) -> float | None:
        return quantile(self.runs, share)


@dataclass(slots=True, kw_only=True)
class Point(Counts):
    start: datetime


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """The points of a range, and their sums."""

    points: Sequence[Point]  # the oldest first
    seconds: float  # of each point
    total: Counts  # of all points


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """The sums of one task type."""

    name: str  # of the task type
    attempts: int  # that ended
    dead: int  # tasks that ended FAILED
    mean_run: float  # seconds of an attempt


def quantile(histogram: Sequence[int], share: float) -> float | None:
    """
    Return the seconds that this share of the attempts did not exceed; None without attempts.

    Within a bucket, the attempts are taken as evenly spread. The last bucket has no end: infinity is returned.
    """
    below, wanted = 0, share * sum(histogram)
    for index, number in enumerate(histogram):
        if number and below + number >= wanted:
            if index == len(EDGES):
                return math.inf
            first = EDGES[index - 1] if index else 0.0
            return first + (EDGES[index] - first) * (wanted - below) / number
        below += number
    return None


def read_counter_series(engine: Engine, span: Range, scope: Scope, name: str = "") -> CounterSeries:
    """Read the counters of a backend, a queue or a task type."""
    steps = STEPS[span]
    step = timedelta(minutes=steps.minutes)
    first = first_start(engine.db.now(), span)
    by_step: list[list[Any]] = [[] for _ in range(steps.number)]
    rows = _rows(engine, scope, steps.length, first).filter(name=name)
    for start, *numbers in rows.values_list("start", *SUMMED):
        by_step[min((start - first) // step, steps.number - 1)].append(numbers)  # or one that has begun since
    points = [Point.of(rows_of_step, start=first + index * step) for index, rows_of_step in enumerate(by_step)]
    return CounterSeries(points, step.total_seconds(), Counts.of(map(attrgetter(*SUMMED), points)))


def read_recent(engine: Engine, scope: Scope, minutes: int) -> dict[str, Counts]:
    """Read the sums of the last minutes by name, with the minute that has begun."""
    first = engine.db.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes)
    by_name: defaultdict[str, list[Any]] = defaultdict(list)
    for name, *numbers in _rows(engine, scope, Length.MINUTE, first).values_list("name", *SUMMED):
        by_name[name].append(numbers)
    return {name: Counts.of(rows) for name, rows in by_name.items()}


def first_start(now: datetime, span: Range) -> datetime:
    """Return when the first point of a range starts."""
    steps = STEPS[span]
    this = now.replace(minute=now.minute - now.minute % steps.minutes, second=0, microsecond=0)
    return this - (steps.number - 1) * timedelta(minutes=steps.minutes)


def read_task_counts(engine: Engine, span: Range) -> list[TaskCounts]:
    """Read the sums of each task type that ran."""
    first = first_start(engine.db.now(), span)
    length = Length.MINUTE if span == Range.HOUR else Length.HOUR
    sums = {f"sum_{name}": Sum(name) for name in ("attempts", "dead", "run_seconds")}
    rows = _rows(engine, Scope.TASK, length, first).values("name").annotate(**sums)
    return [
        TaskCounts(
            name=row["name"],
            attempts=row["sum_attempts"],
            dead=row["sum_dead"],
            mean_run=row["sum_run_seconds"] / row["sum_attempts"],
        )
        for row in rows.filter(sum_attempts__gt=0).order_by("-sum_attempts", "name")[:MAX_TASK_TYPES]
    ]


def slowest(counts: Iterable[TaskCounts], limit: int) -> list[TaskCounts]:
    return sorted(counts, key=lambda task: -task.mean_run)[:limit]


def _rows(engine: Engine, scope: Scope, length: Length, first: datetime) -> Any:
    rows = CounterPeriod.objects.using(engine.database)
    return rows.filter(backend=engine.alias, scope=scope, length=length, start__gte=first)
