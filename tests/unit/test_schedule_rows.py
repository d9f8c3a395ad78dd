"""Rows of schedules whose times have no time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.test import override_settings

from jobqueue.models import Schedule
from jobqueue.schedules.expressions import upcoming
from jobqueue.schedules.rows import from_row_time, parse_ticks, to_row_time


@pytest.mark.parametrize("expression", ["@every 1200", "*/20 * * * *"])
@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_each_local_time_has_one_tick_without_time_zones(expression: str) -> None:
    """Rows store local times. When the clocks are put back, 02:00 to 03:00 exists twice."""
    row = Schedule(expression=expression, timezone="Europe/Berlin" if "*" in expression else "")
    ticks = upcoming(parse_ticks(row), datetime(2026, 10, 24, 22, 50, tzinfo=UTC), 12)

    assert [from_row_time(to_row_time(tick)) for tick in ticks] == ticks
    gaps = [(later - earlier) // timedelta(minutes=1) for earlier, later in pairwise(ticks)]
    assert gaps == [20] * 5 + [80] + [20] * 5


@override_settings(USE_TZ=True, TIME_ZONE="Europe/Berlin")
def test_second_hour_counts_with_time_zones() -> None:
    ticks = upcoming(parse_ticks(Schedule(expression="@every 1200")), datetime(2026, 10, 24, 22, 50, tzinfo=UTC), 12)

    assert ticks[-1] - ticks[0] == timedelta(minutes=220)
