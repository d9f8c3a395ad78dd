"""jobqueue.testing: schedules fire when a test lets time pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest
from django.test import TestCase

from jobqueue import Cron, Every, schedule, testing
from jobqueue.api import schedules as verbs
from jobqueue.conf.compat import task_enqueued
from jobqueue.declarations import schedules as declared_schedules
from jobqueue.engine import engine_for
from jobqueue.models import Schedule, ScheduleDeployment, ScheduleTick, Task
from jobqueue.values.policies import MAX_COUNTED
from jobqueue.values.states import Status
from tests.actor import actors
from tests.actor.stage import Stage
from tests.tasks import add, add_later, echo_tick

pytestmark = [pytest.mark.django_db(databases=["default", "sqlite"]), pytest.mark.usefixtures("own_schedules")]

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 2, 27, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def ran() -> list[tuple[str, str]]:
    """Run what is READY. Return the schedule and the tick of each task."""
    polls = testing.run_until_idle()
    assert {poll.status for poll in polls} <= {Status.SUCCESSFUL}
    rows = Task.objects.using(engine_for("default").database).in_bulk([poll.id for poll in polls])
    return [(options["schedule"], options["scheduled_at"]) for options in (rows[poll.id].options for poll in polls)]


def history(name: str) -> list[tuple[int, str]]:
    ticks = ScheduleTick.objects.using(engine_for("default").database).filter(schedule__name=name)
    return [(tick.count, tick.reason) for tick in ticks.order_by("tick_at")]


class TestAdvance:
    def test_advance_fires_what_is_due_on_the_first_of_the_month(self, stage: Stage) -> None:
        schedule("invoices", echo_tick, Cron("0 8 1 * *", timezone="Europe/Berlin"))
        schedule("week", echo_tick, Cron("0 9 * * mon", timezone="Europe/Berlin"))
        testing.set_time(datetime(2026, 2, 28, 0, tzinfo=BERLIN))
        testing.advance(DAY)
        assert ran() == []
        testing.advance(DAY)
        assert ran() == [("invoices", "2026-03-01T07:00:00+00:00")]
        testing.advance(DAY)
        assert ran() == [("week", "2026-03-02T08:00:00+00:00")]

    def test_body_gets_its_schedule_and_tick(self, stage: Stage) -> None:
        schedule("each-hour", echo_tick, Every(hours=1))
        testing.set_time(NOON)
        testing.advance(HOUR)
        (poll,) = testing.run_until_idle()

        assert stage.result(poll.id) == ["each-hour", "2026-02-27T13:00:00+00:00"]

    def test_time_starts_now_and_stands_still_between_calls(self, stage: Stage) -> None:
        schedule("each-second", add, Every(seconds=1), args=[1], overlap="allow")
        before = engine_for("default").db.now()
        testing.advance(timedelta(seconds=10))
        after = engine_for("default").db.now()
        assert len(ran()) == 10
        assert ran() == []
        next_at = Schedule.objects.using(stage.database).get().next_at
        assert next_at is not None
        assert before + timedelta(seconds=10) < next_at <= after + timedelta(seconds=11)

    def test_each_tick_is_accounted_for_once(self, stage: Stage) -> None:
        schedule("warm", add, Every(minutes=5), args=[1])
        schedule("mail", add, Cron("0 8 * * *", "UTC"), args=[1], overlap="allow", catch_up="none")
        testing.set_time(NOON)
        testing.advance(30 * DAY)
        assert history("warm") == [(1, ""), (MAX_COUNTED, "overlap")]
        skipped = ScheduleTick.objects.using(stage.database).get(reason="overlap")
        assert skipped.last_at - skipped.tick_at == (30 * 288 - 2) * timedelta(minutes=5)
        assert history("mail") == [(1, "")] * 30
        assert len(ran()) == 31

    @pytest.mark.slow
    def test_steps_and_one_jump_fire_the_same_ticks(self, stage: Stage) -> None:
        schedule("a", add, Cron("*/7 * * * *", "UTC"), args=[1], overlap="allow", jitter=600)
        schedule("b", add, Every(minutes=11), args=[1], overlap="allow")
        testing.set_time(NOON)
        for _ in range(3):
            testing.advance(HOUR)
        in_steps = sorted(ran())
        Schedule.objects.using(stage.database).all().delete()
        ScheduleDeployment.objects.using(stage.database).all().delete()
        testing.set_time(NOON)
        testing.advance(3 * HOUR)

        assert sorted(ran()) == in_steps
        assert len(in_steps) > 35

    def test_overlap_skips_until_the_task_has_run(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1])
        testing.set_time(NOON)
        testing.advance(3 * HOUR)
        ran()
        testing.advance(HOUR)

        assert history("each-hour") == [(1, ""), (2, "overlap"), (1, "")]
        assert ran() == [("each-hour", "2026-02-27T16:00:00+00:00")]

    def test_waiting_tick_runs_after_the_task_before_it(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1], overlap="queue_one")
        testing.set_time(NOON)
        testing.advance(3 * HOUR)

        assert [tick for _, tick in ran()] == ["2026-02-27T13:00:00+00:00", "2026-02-27T14:00:00+00:00"]
        assert history("each-hour") == [(1, ""), (1, ""), (1, "overlap")]

    def test_last_task_replaces_the_others(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1], overlap="cancel_running")
        testing.set_time(NOON)
        testing.advance(3 * HOUR)
        testing.advance(HOUR)

        assert ran() == [("each-hour", "2026-02-27T16:00:00+00:00")]

    @pytest.mark.parametrize(("catch_up", "count"), [("latest", 1), ("none", 0), ("all", 3)])
    def test_after_a_downtime_catch_up_decides(self, stage: Stage, catch_up: Any, count: int) -> None:
        schedule("each-day", add, Every(days=1), args=[1], overlap="allow", catch_up=catch_up)
        testing.set_time(NOON)
        testing.advance(3 * DAY, downtime=True)

        assert len(ran()) == count
        assert sum(count for count, _ in history("each-day")) == 3

    def test_tasks_of_earlier_ticks_are_older(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1], overlap="allow", expires=timedelta(hours=2))
        testing.set_time(NOON)
        testing.advance(4 * HOUR + timedelta(minutes=30))
        statuses = [poll.status for poll in testing.run_until_idle()]

        assert statuses == [Status.FAILED, Status.FAILED, Status.SUCCESSFUL, Status.SUCCESSFUL]

    def test_pause_ends_in_the_time_of_the_test(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1])
        testing.set_time(NOON)
        verbs.pause("each-hour", until=3 * HOUR - timedelta(minutes=1))
        testing.advance(3 * HOUR)

        assert history("each-hour") == [(2, "paused"), (1, "")]

    def test_schedules_can_be_left_out(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1])
        testing.set_time(NOON)
        testing.advance(3 * DAY, schedules=False)
        assert ran() == []
        testing.advance(HOUR)
        assert ran() == [("each-hour", "2026-02-27T13:00:00+00:00")]

    def test_skipped_hour_runs_right_after_it(self, stage: Stage) -> None:
        schedule("backup", add, Cron("30 2 * * *", timezone="Europe/Berlin"), args=[1])
        testing.set_time(datetime(2026, 3, 29, 0, tzinfo=BERLIN))
        testing.advance(6 * HOUR)

        assert ran() == [("backup", "2026-03-29T01:00:00+00:00")]

    def test_actors_and_async_tasks_run(self, stage: Stage) -> None:
        schedule("actor", actors.Later, Every(hours=1), args=[1])
        schedule("async", add_later, Every(hours=1), args=[1])
        testing.set_time(NOON)
        testing.advance(HOUR)

        assert sorted(name for name, _ in ran()) == ["actor", "async"]

    def test_new_tasks_send_a_signal(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1])
        received: list[Any] = []

        def receive(task_result: Any, **_: Any) -> None:
            received.append(task_result.args)

        task_enqueued.connect(receive)
        try:
            testing.advance(HOUR)
        finally:
            task_enqueued.disconnect(receive)
        assert received == [[1]]

    def test_nothing_is_stored_without_schedules(self, stage: Stage) -> None:
        testing.advance(HOUR)

        assert not ScheduleDeployment.objects.using(stage.database).filter(digest="time").exists()


class TestSetTime:
    def test_time_cannot_go_back_before_a_tick(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1])
        testing.set_time(NOON)
        testing.advance(HOUR)

        with pytest.raises(ValueError, match=r"The schedule 'each-hour' has a tick after .*: 2026-02-27 13:00:00"):
            testing.set_time(NOON)
        testing.set_time(NOON + 30 * DAY)
        assert len(ran()) == 1

    def test_schedule_starts_at_its_time(self, stage: Stage) -> None:
        schedule("each-hour", add, Every(hours=1), args=[1], starts_at=NOON + 3 * HOUR, ends_at=NOON + 4 * HOUR)
        testing.set_time(NOON)
        testing.advance(2 * HOUR)
        assert ran() == []
        testing.advance(5 * HOUR)
        assert history("each-hour") == [(1, ""), (1, "overlap")]

    @pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "2026-01-01", None])
    def test_moment_needs_a_time_zone(self, moment: Any) -> None:
        with pytest.raises(ValueError, match="takes a datetime with a time zone"):
            testing.set_time(moment)


class TestRollback(TestCase):
    """The time of a test ends with it, also where the class has let time pass before."""

    @classmethod
    def setUpTestData(cls) -> None:
        with patch.object(declared_schedules, "declared", []):
            declare()
            testing.set_time(NOON)
            testing.advance(HOUR)

    def check(self) -> None:
        declare()
        testing.advance(DAY)
        assert history("each-hour") == [(1, ""), (24, "overlap")]

    def test_first(self) -> None:
        self.check()

    def test_second(self) -> None:
        self.check()


def declare() -> None:
    schedule("each-hour", add, Every(hours=1), args=[1])
