"""Charts as inline SVG: bars of successes and failures, and lines of waiting times. Each has a table of its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.http import HttpRequest
from django.utils.dates import WEEKDAYS_ABBR
from django.utils.formats import time_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.operations.formatting import Text, duration, local
from jobqueue.operations.overview.periods import CounterSeries, Counts, Point, Range
from jobqueue.values.counters import EDGES
from jobqueue.values.text import number_text

STEP, BAR, HEIGHT = 10, 8, 100  # of the drawing; the page stretches it
LABELS = 5  # below a chart
FASTEST_SECONDS = 0.001  # the lower edge of a chart of times
DAY_SECONDS = 86_400
RANGES: dict[Range, Text] = {
    Range.HOUR: gettext_lazy("Hour"),
    Range.DAY: gettext_lazy("Day"),
    Range.WEEK: gettext_lazy("Week"),
}


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a chart."""

    kind: str  # the CSS class of its colour
    shape: str  # distinguishes it without colours
    name: str  # in the legend
    path: str  # of the SVG


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """One point of the time axis."""

    x: int  # in units of the SVG
    label: str  # of the time
    values: Sequence[str]  # by series, for the table
    tooltip: str  # shown while the pointer is over it


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as an SVG, with a table of the same numbers."""

    key: str  # distinguishes it from the other charts of a page
    title: str  # above it
    summary: str  # one sentence, for screen readers
    series: Sequence[Series]  # in the order of the legend
    columns: Sequence[ChartPoint]  # from left to right
    scale: Sequence[str]  # labels from top to bottom, at equal distances
    is_lines: bool = False  # lines instead of bars
    step: int = STEP  # width of a column, in units of the SVG
    height: int = HEIGHT  # in units of the SVG
    is_empty: bool = False  # all values are 0
    times: Sequence[str] = field(default_factory=list)  # labels under the chart

    @property
    def width(self) -> int:
        return STEP * len(self.columns)

    @property
    def grid(self) -> str:
        """The path of the horizontal lines."""
        distance = HEIGHT / (len(self.scale) - 1)
        return "".join(f"M0 {index * distance:g}H{self.width}" for index in range(len(self.scale)))


def draw_charts(timeline: CounterSeries) -> list[Chart]:
    return [finished_chart(timeline), wait_chart(timeline)]


def read_range(request: HttpRequest) -> Range:
    name = request.GET.get("range", "")
    return Range(name) if name in {*Range} else Range.HOUR


def ranges(request: HttpRequest, selected: Range) -> list[tuple[Text, str, bool]]:
    """Return the words and the address of each range, and whether it is chosen."""
    links = []
    for choice, label in RANGES.items():
        query = request.GET.copy()
        query["range"] = choice
        links.append((label, f"?{query.urlencode()}", choice is selected))
    return links


def finished_chart(timeline: CounterSeries) -> Chart:
    """Draw how many tasks ended a minute, and how many attempts failed with a retry. Polls that wait are neither."""
    minutes = timeline.seconds / 60
    outcomes: list[tuple[str, str, str, Callable[[Point], int]]] = [
        ("successful", "✓", _("Successful"), lambda point: point.completed),
        ("scheduled", "↻", _("Failed, with a retry"), lambda point: point.retries),
        ("failed", "✗", _("Failed"), lambda point: point.dead),
    ]
    rates = [[number(point) / minutes for *_ignored, number in outcomes] for point in timeline.points]
    top = round_up(max(sum(rate) for rate in rates))
    series = [
        Series(kind, shape, name, bars([(sum(rate[:index]) / top, sum(rate[: index + 1]) / top) for rate in rates]))
        for index, (kind, shape, name, _number) in enumerate(outcomes)
    ]
    total = timeline.total
    summary = _("%(completed)s successful, %(retries)s failed with a retry, %(dead)s failed.") % {
        "completed": number_text(total.completed),
        "retries": number_text(total.retries),
        "dead": number_text(total.dead),
    }
    return Chart(
        key="finished",
        title=_("Successes and failures per minute"),
        summary=summary,
        series=series,
        columns=list(columns(timeline, series, [[per_minute(number) for number in rate] for rate in rates])),
        scale=[per_minute(top), per_minute(top / 2), "0"],
        is_empty=not (total.completed or total.retries or total.dead),
        times=axis(timeline),
    )


def wait_chart(timeline: CounterSeries) -> Chart:
    """
    Draw how long tasks waited from READY to the claim, on a logarithmic scale.

    Lines end at the last edge of the histogram: the words say that a wait was longer.
    """
    shares = [("running", "━", _("p50 (half of them)"), 0.5), ("failed", "┅", _("p95 (95 of 100)"), 0.95)]
    waits = [[point.wait(share) for *_ignored, share in shares] for point in timeline.points]
    longest = min(max((wait for row in waits for wait in row if wait is not None), default=1.0), EDGES[-1])
    decades = max(3, math.ceil(math.log10(max(longest, FASTEST_SECONDS) / FASTEST_SECONDS)))

    def height(seconds: float | None) -> float | None:
        if seconds is None:
            return None
        return math.log10(min(max(seconds, FASTEST_SECONDS), EDGES[-1]) / FASTEST_SECONDS) / decades

    series = [
        Series(kind, shape, name, lines([height(row[index]) for row in waits]))
        for index, (kind, shape, name, _share) in enumerate(shares)
    ]
    return Chart(
        key="wait",
        title=_("Wait until the start"),
        summary=wait_summary(timeline.total),
        series=series,
        columns=list(columns(timeline, series, [[duration_text(wait) for wait in row] for row in waits])),
        scale=[decade(FASTEST_SECONDS * 10**index) for index in range(decades, -1, -1)],
        is_lines=True,
        is_empty=not sum(timeline.total.waits),
        times=axis(timeline),
    )


def wait_summary(total: Counts) -> str:
    p50, p95 = total.wait(0.5), total.wait(0.95)
    if p50 == math.inf:
        form = _("Median wait: %(p50)s.")
    elif p95 == math.inf:
        form = _("Median wait at most %(p50)s; more than 5%% waited %(p95)s.")
    else:
        form = _("Median wait at most %(p50)s; 95%% within %(p95)s.")
    return form % {"p50": duration_text(p50), "p95": duration_text(p95)}


def columns(timeline: CounterSeries, series: Sequence[Series], values: Sequence[Sequence[str]]) -> Iterator[ChartPoint]:
    for index, (point, row) in enumerate(zip(timeline.points, values, strict=True)):
        label = start_text(point.start, timeline)
        text = ", ".join(f"{line.name} {value}" for line, value in zip(series, row, strict=True))
        yield ChartPoint(index * STEP, label, row, f"{label}: {text}")


def bars(spans: Sequence[tuple[float, float]]) -> str:
    """Return the path of one bar for each point. spans: its lower and upper end, as parts of the height."""
    return "".join(
        f"M{index * STEP + (STEP - BAR) / 2:g} {HEIGHT * (1 - low):.2f}h{BAR}V{HEIGHT * (1 - high):.2f}h-{BAR}z"
        for index, (low, high) in enumerate(spans)
        if high > low
    )


def lines(heights: Sequence[float | None]) -> str:
    """Return the path of a line that is level within each point, and interrupted where there is no value."""
    path, is_drawing = [], False
    for index, height in enumerate(heights):
        if height is None:
            is_drawing = False
            continue
        y = f"{HEIGHT * (1 - height):.2f}"
        path.append(f"V{y}" if is_drawing else f"M{index * STEP} {y}")
        path.append(f"H{(index + 1) * STEP}")
        is_drawing = True
    return "".join(path)


def sparkline(numbers: Sequence[int]) -> str:
    """Return the path of small bars."""
    top = max(numbers, default=0) or 1
    return bars([(0, number / top) for number in numbers])


def round_up(number: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not less than the number; 1 for 0."""
    if number <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(number))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= number * 0.999999)


def per_minute(number: float) -> str:
    return number_text(number, ".0f" if number >= 10 or number == round(number) else ".2g")


def duration_text(seconds: float | None) -> str:
    """Return a time in words. Infinity is any time in the last bucket of a histogram."""
    if seconds is None:
        return "–"
    return _("over %(time)s") % {"time": duration(EDGES[-1])} if seconds == math.inf else duration(seconds)


def decade(seconds: float) -> str:
    if seconds < 0.9:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    return _("%(number)s s") % {"number": number_text(seconds, ".0f")}


def start_text(at: datetime, timeline: CounterSeries) -> str:
    """Return when a point starts, with the day of the week if the range has several days."""
    time = time_format(local(at), "H:i")
    is_long = timeline.seconds * len(timeline.points) > DAY_SECONDS
    return f"{WEEKDAYS_ABBR[local(at).weekday()]} {time}" if is_long else time


def axis(timeline: CounterSeries) -> list[str]:
    """Return the labels below a chart, at equal distances."""
    last = len(timeline.points) - 1
    return [start_text(timeline.points[round(last * index / (LABELS - 1))].start, timeline) for index in range(LABELS)]
