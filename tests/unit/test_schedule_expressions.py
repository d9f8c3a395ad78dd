"""`Cron` and `Every` against an independent oracle.

The oracle takes the times on the wall from croniter, another well-kept library, and walks through real minutes to apply
Debian cron's rules for changes of the clock. croniter's own rules for them differ, so it never sees a time zone here.
"""

import random
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from django.utils.translation import override

from jobqueue.schedules.expressions import EPOCH, Cron, Every, last_before, ticks_after, upcoming

MINUTE = timedelta(minutes=1)
CHANGES = {
    "Europe/Berlin": ["2024-03-31", "2024-10-27", "2031-03-30"],
    "America/New_York": ["2024-03-10", "2024-11-03", "2031-11-02"],
    "Australia/Lord_Howe": ["2024-04-07", "2024-10-06", "2031-04-06"],
    "Asia/Kolkata": ["2024-03-31"],
    "America/Sao_Paulo": ["2018-02-18", "2018-11-04", "2024-02-18"],
    "Pacific/Apia": ["2011-12-30"],
}
EXPRESSIONS = [
    "*/5 * * * *",
    "* 2 * * *",
    "*/10 1-3 * * *",
    "0 * * * *",
    "15 */2 * * *",
    "*/20 2 * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "45 1 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "15,45 0,2 * * sun",
    "0 3 1,15,31 * *",
    "5 4 * mar,oct mon-fri",
    "0 12 13 * fri",
]
MOMENTS = 12
WINDOW = timedelta(days=15)


@cache
def ticks(expression: str, zone: str, day: str) -> list[datetime]:
    """Return the ticks from three days before a day to twelve days after it, found by walking through all minutes."""
    start = datetime.fromisoformat(day) - timedelta(days=3)
    walls = set(takewhile(lambda wall: wall < start + WINDOW, croniter(expression, start - MINUTE).all_next(datetime)))
    runs_in_every_hour = any(part.startswith("*") for part in expression.split()[:2])
    return [
        minute.moment
        for minute in minutes(start, zone)
        if (minute.wall in walls and (runs_in_every_hour or not minute.is_repeated))
        or (not walls.isdisjoint(minute.skipped_before) and not runs_in_every_hour)
    ]


class Minute(NamedTuple):
    moment: datetime
    wall: datetime
    is_repeated: bool
    skipped_before: list[datetime]


@cache
def minutes(start: datetime, zone_name: str) -> list[Minute]:
    zone = ZoneInfo(zone_name)
    ticks, expected = [], start
    first = start.replace(tzinfo=zone).astimezone(UTC)
    for moment in (first + MINUTE * n for n in range(WINDOW // MINUTE)):
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None)
        skipped = [expected + MINUTE * n for n in range((wall - expected) // MINUTE)]
        ticks.append(Minute(moment, wall, local.fold == 1, skipped))
        expected = wall + MINUTE
    return ticks


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("zone", CHANGES)
def test_next_tick_is_the_one_found_minute_by_minute(zone: str, expression: str) -> None:
    draw = random.Random(f"{zone} {expression}")
    for day in CHANGES[zone]:
        noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        for _ in range(MOMENTS):
            moment = noon + timedelta(seconds=draw.choice((0, 1, 59)), minutes=draw.randint(-2000, 2000))
            expected = [tick for tick in ticks(expression, zone, day) if tick > moment][:3]

            assert upcoming(Cron(expression, zone), moment, len(expected)) == expected, (day, moment)


def test_table_has_at_least_two_thousand_triples() -> None:
    assert len(EXPRESSIONS) * sum(map(len, CHANGES.values())) * MOMENTS >= 2_000


def tick_texts(expression: Cron | Every, after: str, count: int = 3) -> list[str]:
    """Return the next ticks as the wall shows them."""
    zone = ZoneInfo(expression.timezone) if isinstance(expression, Cron) else UTC
    moment = datetime.fromisoformat(after).replace(tzinfo=zone)
    return [f"{tick.astimezone(zone):%Y-%m-%d %H:%M:%S}" for tick in upcoming(expression, moment, count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 L * *", ["2024-02-29 00:00:00", "2024-03-31 00:00:00"]),
        ("0 9 LW * *", ["2024-02-29 09:00:00", "2024-03-29 09:00:00"]),
        ("0 9 * * mon#1", ["2024-03-04 09:00:00", "2024-04-01 09:00:00"]),
        ("0 9 * * 5L", ["2024-02-23 09:00:00", "2024-03-29 09:00:00"]),
        ("0 0 29 2 *", ["2024-02-29 00:00:00", "2028-02-29 00:00:00"]),
        ("0 0 * * 7", ["2024-02-25 00:00:00", "2024-03-03 00:00:00"]),
        ("0 0 * JAN Mon", ["2025-01-06 00:00:00", "2025-01-13 00:00:00"]),
        # Both days are given: one of them is enough. One begins with a star: both must match.
        ("0 0 1 * mon", ["2024-02-26 00:00:00", "2024-03-01 00:00:00"]),
        ("0 0 */2 * mon", ["2024-03-11 00:00:00", "2024-03-25 00:00:00"]),
        ("*/20 59 23 * * *", ["2024-02-20 23:59:00", "2024-02-20 23:59:20", "2024-02-20 23:59:40"]),
        ("@daily", ["2024-02-21 00:00:00", "2024-02-22 00:00:00"]),
        ("@WEEKLY", ["2024-02-25 00:00:00"]),
        ("@hourly", ["2024-02-20 13:00:00"]),
        ("0 0 30 2 mon", ["2024-02-26 00:00:00"]),
        ("* * */20 * 1L", []),
    ],
)
def test_expression_has_these_ticks(expression: str, expected: list[str]) -> None:
    assert tick_texts(Cron(expression, "UTC"), "2024-02-20 12:30", len(expected) or 1) == expected


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        # Skipped: 02:00 to 03:00 on 2024-03-31. Repeated: 02:00 to 03:00 on 2024-10-27.
        ("30 2 * * *", "2024-03-31 00:00", ["2024-03-31 03:00:00", "2024-04-01 02:30:00"]),
        ("0,30 2,3 * * *", "2024-03-31 00:00", ["2024-03-31 03:00:00", "2024-03-31 03:30:00"]),
        ("15 30 2 * * *", "2024-03-31 00:00", ["2024-03-31 03:00:00", "2024-04-01 02:30:15"]),
        ("30 2 * * *", "2024-10-27 00:00", ["2024-10-27 02:30:00", "2024-10-28 02:30:00"]),
        (
            "*/30 * * * *",
            "2024-10-27 01:40",
            ["2024-10-27 02:00:00", "2024-10-27 02:30:00"] * 2 + ["2024-10-27 03:00:00"],
        ),
    ],
)
def test_change_of_the_clock_follows_debian_cron(expression: str, after: str, expected: list[str]) -> None:
    assert tick_texts(Cron(expression, "Europe/Berlin"), after, len(expected)) == expected


def test_tick_after_the_first_of_two_equal_hours_is_on_the_next_day() -> None:
    """Without care, a moment in the second of the two hours would have its next tick in the first, in its past."""
    second_hour = datetime(2024, 10, 27, 1, 10, tzinfo=UTC)

    assert Cron("45 2 * * *", "Europe/Berlin").next_after(second_hour) == datetime(2024, 10, 28, 1, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    "expression", [*EXPRESSIONS[:-4:3], "45 */10 * * * *", "5,10 */30 2,3 * * *", "* 0-9 4 27 * *"]
)
@pytest.mark.parametrize("zone", CHANGES)
def test_last_ticks_before_a_moment_are_those_that_next_after_lists(zone: str, expression: str) -> None:
    draw = random.Random(f"{zone} {expression}")
    cron = Cron(expression, zone)
    for day in CHANGES[zone]:
        noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
        for count in (1, 7, 100):
            start = noon - timedelta(minutes=draw.randint(0, 4000))
            until = start + timedelta(days=draw.choice((0.1, 1, 2)), seconds=draw.choice((0, 0.5)))
            listed = list(takewhile(until.__gt__, ticks_after(cron, start)))
            count = min(count, len(listed))
            if listed:
                assert last_before(cron, start, until, count) == listed[-count:]


def test_last_ticks_after_decades_are_found() -> None:
    until = EPOCH + timedelta(days=40 * 366, seconds=0.5)
    seconds_of_a_day = last_before(Cron("* * 3 1 1 *", "UTC"), EPOCH, until, 500)

    assert seconds_of_a_day == [datetime(2010, 1, 1, 3, 51, 40, tzinfo=UTC) + timedelta(seconds=s) for s in range(500)]
    assert last_before(Every(seconds=1), EPOCH, until, 3) == [until - timedelta(seconds=s + 0.5) for s in (2, 1, 0)]


def test_interval_is_anchored_whatever_moment_is_asked_from() -> None:
    assert tick_texts(Every(minutes=90), "2024-03-31 00:01") == [
        "2024-03-31 01:30:00",
        "2024-03-31 03:00:00",
        "2024-03-31 04:30:00",
    ]
    anchor = datetime(2024, 1, 1, 0, 0, 7, tzinfo=UTC)
    assert tick_texts(Every(timedelta(hours=1), anchor=anchor), "2024-03-31 00:00:07", 1) == ["2024-03-31 01:00:07"]
    assert tick_texts(Every(hours=1, anchor=anchor), "2023-12-31 22:30", 1) == ["2023-12-31 23:00:07"]


@pytest.mark.parametrize(
    ("expression", "field", "problem"),
    [
        (Cron("61 * * * *", "UTC"), "expression", "the minute of '61 * * * *' is not valid"),
        (Cron("0 25 * * *", "UTC"), "expression", "the hour of '0 25 * * *' is not valid"),
        (Cron("0 0 30 2 *", "UTC"), "expression", "the day-of-month of '0 0 30 2 *' is not valid"),
        (Cron("0 0 * * someday", "UTC"), "expression", "the day-of-week of '0 0 * * someday' is not valid"),
        (Cron("0 0 * *", "UTC"), "expression", "'0 0 * *' has 4 fields"),
        (Cron("", "UTC"), "expression", "'' has 0 fields"),
        (Cron("@reboot", "UTC"), "expression", "'@reboot' is not one of @yearly"),
        (Cron("0 0 * * *", "Berlin"), "timezone", "this host has no time zone 'Berlin'"),
        (Cron("0 0 * * *", "../etc/passwd"), "timezone", "this host has no time zone '../etc/passwd'"),
        (Cron(f"{'0,' * 130} * * * *", "UTC"), "expression", "'0,0,0,"),
        (Cron("0 0 * * *", "A" * 5000), "timezone", "this host has no time zone 'AAAA"),
        (Every(seconds=0.5), "interval", "an interval must be between a second and ten years"),
        (Every(minutes=1, anchor=datetime(2024, 1, 1)), "anchor", "anchor must be a datetime with a time zone"),
        (Every(minutes=1, anchor=datetime(1, 1, 1, tzinfo=UTC)), "anchor", "anchor must lie between the years 1970"),
    ],
)
def test_mistake_is_described(expression: Cron | Every, field: str, problem: str) -> None:
    (mistake,) = expression.problems()

    assert (mistake.field, str(mistake).startswith(problem)) == (field, True), mistake


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (Cron("0 8 * * 1-5", "Europe/Berlin"), "At 08:00, Monday through Friday, Europe/Berlin"),
        (Cron("@daily", "UTC"), "At 00:00, UTC"),
        (Cron("0 9 * * 1#1", "UTC"), "At 09:00, on the first Monday of the month, UTC"),
        (Cron("0 9 * * 1#1,1#3", "UTC"), "0 9 * * 1#1,1#3, UTC"),
        (Every(minutes=5), "Every 5 minutes"),
        (Every(hours=1), "Every hour"),
        (Every(minutes=90), "Every 90 minutes"),
        (Every(seconds=1.5), "Every 1.5 seconds"),
    ],
)
def test_expression_is_described_in_words(expression: Cron | Every, words: str) -> None:
    assert list(expression.problems()) == []
    assert expression.describe() == words


@pytest.mark.parametrize(
    ("language", "cron", "every"),
    [
        ("de-at", "Um 08:00, Montag bis Freitag, UTC", "Alle 5 Minuten"),
        ("fr", "À 08:00, de lundi à vendredi, UTC", "Toutes les 5 minutes"),
        ("es", "At 08:00, Monday through Friday, UTC", "Every 5 minutes"),
    ],
)
def test_expression_is_described_in_words_of_the_language(language: str, cron: str, every: str) -> None:
    with override(language):
        assert (Cron("0 8 * * 1-5", "UTC").describe(), Every(minutes=5).describe()) == (cron, every)
