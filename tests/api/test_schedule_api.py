"""jobqueue.api.schedules: what people do with schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobqueue.api import schedules as api
from jobqueue.conf.compat import task_enqueued
from jobqueue.declarations.schedules import Declaration
from jobqueue.engine import engine_for
from jobqueue.exceptions import DuplicateKey, ScheduleChanged, ScheduleNotFound
from jobqueue.models import Schedule, ScheduleTick, Task
from jobqueue.operations import schedules as inspect
from jobqueue.schedules.expressions import Cron, Every
from jobqueue.schedules.rows import from_row_time
from tests.tasks import add

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

BERLIN = "Europe/Berlin"


def declaration(name: str = "report", expression: Cron | Every | None = None, **options: Any) -> Declaration:
    return Declaration(name, add, expression or Cron("0 8 * * *", BERLIN), "", args=[1, 2], **options)


def declared_in_code() -> Schedule:
    """Return a schedule as code declares it."""
    columns = Declaration("report", add, Every(hours=1), "shop/tasks.py:42", args=[1, 2]).columns()
    return engine_for("default").schedules.save("report", columns)[0]


def day(number: int, hour: int = 0) -> datetime:
    return datetime(2026, 3, number, hour, tzinfo=UTC)


def test_people_create_change_and_delete_a_schedule() -> None:
    row = api.create(declaration())
    assert (row.expression, row.timezone, row.declared_at) == ("0 8 * * *", BERLIN, "")
    assert api.change(declaration(expression=Every(hours=2))).expression == "@every 7200"
    api.delete("report")
    assert not Schedule.objects.exists()


def test_change_after_another_change_is_refused() -> None:
    read = api.create(declaration()).updated_at
    api.change(declaration(expression=Every(hours=2)), unchanged_since=read)

    with pytest.raises(ScheduleChanged, match="was changed after the caller read it"):
        api.change(declaration(expression=Every(hours=3)), unchanged_since=read)

    assert Schedule.objects.get().expression == "@every 7200"


def test_name_of_an_existing_schedule_is_refused() -> None:
    api.create(declaration())
    with pytest.raises(ValueError, match="There is a schedule 'report' already"):
        api.create(declaration(expression=Every(hours=2)))
    assert Schedule.objects.get().expression == "0 8 * * *"


def test_all_problems_of_a_schedule_are_named_and_nothing_is_written() -> None:
    with pytest.raises(ValueError, match=r"the hour of '0 25 \* \* \*' is not valid.*overlap must be one of"):
        api.create(declaration(expression=Cron("0 25 * * *", BERLIN), overlap="wait"))
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("action", [lambda: api.change(declaration()), lambda: api.delete("report")])
def test_schedule_that_code_declares_cannot_be_changed(action: Callable[[], object]) -> None:
    declared_in_code()
    with pytest.raises(ValueError, match=r"Code declares the schedule 'report' at shop/tasks\.py:42"):
        action()


def test_people_may_use_the_name_of_a_retired_schedule() -> None:
    row = declared_in_code()
    engine_for("default").schedules.retire([row.pk])
    assert api.create(declaration()).pk == row.pk
    assert Schedule.objects.active().get().declared_at == ""


def test_pause_stores_who_and_why_and_resume_ends_it() -> None:
    api.create(declaration())
    api.pause("report", by="ada", reason="the mail server is down", until=timedelta(hours=2))
    row = Schedule.objects.get()
    assert (row.paused_by, row.pause_reason) == ("ada", "the mail server is down")
    assert row.paused_at is not None
    assert row.resume_at == row.paused_at + timedelta(hours=2)
    api.resume("report")
    assert Schedule.objects.get().paused_at is None


def test_resume_restarts_a_schedule_that_an_error_stopped() -> None:
    api.create(declaration())
    Schedule.objects.update(paused_at=engine_for("default").db.now(), next_at=None, due_at=None)
    api.resume("report")
    row = Schedule.objects.get()
    assert row.due_at == row.next_at is not None


def test_run_now_enqueues_a_task_also_while_paused() -> None:
    api.create(declaration())
    api.pause("report")
    task = Task.objects.get(pk=api.run("report"))
    tick = ScheduleTick.objects.get()
    assert (tick.trigger, tick.task_id, task.args) == ("manual", task.pk, [1, 2])


def test_run_now_and_backfill_send_task_enqueued() -> None:
    sent: list[str] = []

    def receiver(task_result: Any, **_: Any) -> None:
        sent.append(task_result.id)
        assert (task_result.task.name, task_result.args) == ("add", [1, 2])

    api.create(declaration(expression=Cron("0 8 * * *", "UTC")))
    task_enqueued.connect(receiver)
    try:
        api.run("report")
        api.backfill("report", day(1), day(3))
        api.backfill("report", day(1), day(4))
    finally:
        task_enqueued.disconnect(receiver)

    assert len(sent) == 4
    assert {*sent} == {str(pk) for pk in Task.objects.values_list("pk", flat=True)}


def test_run_now_says_which_task_holds_the_key() -> None:
    api.create(declaration(task_options={"key": "once"}))
    first = api.run("report")
    with pytest.raises(DuplicateKey, match=str(first)):
        api.run("report")
    assert ScheduleTick.objects.count() == 1


def test_backfill_enqueues_each_tick_of_the_range_once() -> None:
    api.create(declaration(expression=Cron("0 8 * * *", "UTC")))
    assert len(api.preview_backfill("report", day(1, 8), day(3, 8)).ticks) == 3
    assert api.backfill("report", day(1, 8), day(2, 8)) == 2
    preview = api.preview_backfill("report", day(1), day(31))
    assert (preview.ticks[0], len(preview.ticks), preview.existing) == (day(3, 8), 28, 2)
    assert api.backfill("report", day(1), day(3)) == 0
    assert Task.objects.count() == 2


def test_backfill_leaves_out_ticks_that_ran_by_schedule() -> None:
    row = api.create(declaration(expression=Every(days=1)))
    Schedule.objects.update(next_at=day(1), due_at=day(1), catch_up="latest")
    engine_for("default").ticks.fire()
    ran = ScheduleTick.objects.get(schedule=row, task_id__isnull=False).tick_at
    preview = api.preview_backfill("report", day(1), ran)
    assert preview.existing == 1
    assert from_row_time(ran) not in preview.ticks


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        (day(2), day(1), "ends .* before it starts"),
        (day(1), datetime(2100, 1, 1, tzinfo=UTC), "must not end after now"),
        (datetime(2026, 3, 1), day(2), "start must have a time zone"),
        (datetime(1970, 1, 1, tzinfo=UTC), day(1), "more than 10,000 ticks"),
    ],
)
def test_wrong_range_of_a_backfill_is_refused(start: datetime, end: datetime, sentence: str) -> None:
    api.create(declaration(expression=Every(minutes=5)))
    with pytest.raises(ValueError, match=sentence):
        api.backfill("report", start, end)
    assert not Task.objects.exists()


@pytest.mark.parametrize("action", [api.pause, api.resume, api.run, api.delete])
def test_unknown_schedule_is_named(action: Callable[[str], object]) -> None:
    with pytest.raises(ScheduleNotFound, match="no schedule 'report'"):
        action("report")


@pytest.mark.parametrize(
    ("hour", "minute", "note"),
    [(2, 30, "skips the time of the tick"), (8, 0, "")],
)
def test_upcoming_tick_says_that_the_clock_skips_its_time(hour: int, minute: int, note: str) -> None:
    expression = Cron(f"{minute} {hour} * * *", BERLIN)
    tick = expression.next_after(datetime(2026, 3, 28, 22, tzinfo=UTC))  # the clock goes forward in the next night
    assert tick is not None
    upcoming = inspect.upcoming_tick(expression, tick)
    assert upcoming.note == "" if not note else note in upcoming.note
    assert upcoming.local.hour == (3 if note else hour)


def test_upcoming_tick_says_that_the_clock_shows_its_time_twice() -> None:
    tick = Cron("30 2 * * *", BERLIN).next_after(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert tick is not None
    assert "twice" in inspect.upcoming_tick(Cron("30 2 * * *", BERLIN), tick).note


def test_schedule_of_a_site_without_time_zones_has_its_ticks(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    row = api.create(declaration(expression=Every(hours=1)))
    row.refresh_from_db()

    first, second = inspect.next_ticks(row, 2)
    assert (first.tick_at.tzinfo, second.tick_at - first.tick_at) == (UTC, timedelta(hours=1))
    assert first.tick_at.minute == 0
    assert api.run("report") == Task.objects.get().pk


def test_next_ticks_end_with_the_schedule() -> None:
    end = engine_for("default").db.now() + timedelta(hours=3)
    row = api.create(declaration(expression=Every(hours=1), ends_at=from_row_time(end)))
    assert len(inspect.next_ticks(row, 10)) == 3


def test_recent_ticks_have_tasks_and_skipped_ticks_newest_first() -> None:
    rows = [api.create(declaration(name)) for name in ("a", "b", "c")]
    api.backfill("a", day(1), day(30))
    api.run("b")
    Task.objects.filter(schedule_id=rows[1].pk).delete()
    ScheduleTick.objects.create(
        schedule=rows[0], tick_at=day(31), last_at=day(31), reason="paused", recorded_at=engine_for("default").db.now()
    )
    recent = inspect.recent_ticks(rows, 4)
    assert [entry.status for entry in recent[rows[0].pk]] == ["SKIPPED", "READY", "READY", "READY"]
    assert [entry.status for entry in recent[rows[1].pk]] == ["DELETED"]
    assert recent[rows[2].pk] == []
