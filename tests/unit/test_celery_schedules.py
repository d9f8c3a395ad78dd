"""Schedules of the real Celery become expressions with the same ticks."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobqueue.schedules.expressions import Every, upcoming
from jobqueue.schedules.from_celery import cron_text, expression_from_celery

schedules = pytest.importorskip("celery.schedules", reason="django-celery-beat needs Django 5.2: see pyproject.toml")
START = datetime(2027, 1, 30, 13, 7, tzinfo=UTC)


def celery_ticks(fields: dict[str, Any], count: int) -> list[datetime]:
    """Let Celery step from one tick to the next."""
    ticks = [START]
    while len(ticks) <= count:
        crontab = schedules.crontab(**fields, nowfun=lambda: ticks[-1])
        start, step, _ = crontab.remaining_delta(ticks[-1])
        ticks.append(start + step)
    return ticks[1:]


def random_field(choose: random.Random, low: int, high: int) -> Any:
    first, last = choose.randint(low, high), choose.randint(low, high)
    forms = ("*", f"*/{choose.randint(1, 8)}", f"{first}-{last}", f"{first},{last}", {first, last}, first)
    stepped = f"{min(first, last)}-{max(first, last)}/{choose.randint(1, 4)}"
    return choose.choice((*forms, stepped, "*", "*"))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"minute": 0, "hour": "8", "day_of_week": "mon-fri"}, "0 8 * * mon-fri"),
        ({"minute": "*/15", "hour": "9-17"}, "*/15 9-17 * * *"),
        ({"minute": {45, 15}, "hour": [3]}, "15,45 3 * * *"),
        ({"minute": "0, 30", "hour": "20-4/2"}, "0,30 0,2,4,20,22 * * *"),
        ({"minute": "0", "day_of_week": "monday"}, "0 * * * 1"),
        ({"minute": "0", "day_of_week": "fri-mon"}, "0 * * * 0,1,5,6"),
        ({"minute": "0", "month_of_year": "*/3", "day_of_month": "1"}, "0 * 1 */3 *"),
        ({"minute": "*/90"}, "*/90 * * * *"),
        # A field with all values would begin with a digit, and then one of the days would be enough.
        ({"minute": "0", "day_of_month": "15", "day_of_week": "0-6"}, "0 * 15 * *"),
        ({"minute": "0", "day_of_month": "1-31", "day_of_week": "1"}, "0 * * * 1"),
        # Both days must match: either one begins with *, or the days of the month are whole weeks.
        ({"minute": "0", "day_of_month": "*/2", "day_of_week": "mon-fri"}, "0 * */2 * mon-fri"),
        ({"minute": "0", "day_of_month": "10-20", "day_of_week": "*/2"}, "0 * 10-20 * */2"),
        ({"minute": "0", "day_of_month": "1-7", "day_of_week": "mon"}, "0 * * * 1#1"),
        ({"minute": "0", "day_of_month": "8-14,29-31", "day_of_week": "2,5"}, "0 * * * 2#2,5#2,2#5,5#5"),
    ],
)
def test_crontab_becomes_a_cron_text(fields: dict[str, Any], text: str) -> None:
    assert cron_text(schedules.crontab(**fields)) == text
    expression = expression_from_celery(schedules.crontab(**fields), "UTC")
    assert not [*expression.problems()]
    assert upcoming(expression, START, 20) == celery_ticks(fields, 20)


def test_random_crontabs_have_the_ticks_of_celery() -> None:
    choose, compared = random.Random(20), 0
    while compared < 300:
        fields = {
            "minute": random_field(choose, 0, 59),
            "hour": random_field(choose, 0, 23),
            "day_of_month": random_field(choose, 1, 28),
            "month_of_year": random_field(choose, 1, 12),
            "day_of_week": random_field(choose, 0, 6),
        }
        try:
            expression = expression_from_celery(schedules.crontab(**fields), "UTC")
        except ValueError:  # both days must match
            continue
        assert upcoming(expression, START, 5) == celery_ticks(fields, 5), fields
        compared += 1


@pytest.mark.parametrize(("day", "weekday"), [("13", "fri"), ("25-31", "mon"), ("2-7", "1"), ("1-8", "1")])
def test_crontab_that_needs_both_days_is_refused(day: str, weekday: str) -> None:
    with pytest.raises(ValueError, match=f"both the day of the month .{day}. and the day of the week"):
        cron_text(schedules.crontab(minute=0, day_of_month=day, day_of_week=weekday))


@pytest.mark.parametrize("schedule", [schedules.schedule(90), timedelta(minutes=1.5), 90, 90.0])
def test_interval_counts_from_an_anchor(schedule: object) -> None:
    assert expression_from_celery(schedule, "UTC", START) == Every(seconds=90, anchor=START)
    assert upcoming(expression_from_celery(schedule, "UTC"), START, 1) == [START + timedelta(seconds=30)]


@pytest.mark.parametrize("schedule", [schedules.BaseSchedule(), "0 8 * * *", None, True])
def test_other_schedule_is_refused_by_name(schedule: object) -> None:
    with pytest.raises(ValueError, match=f"is a {type(schedule).__name__}, which has no counterpart"):
        expression_from_celery(schedule, "UTC")
