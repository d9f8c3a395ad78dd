"""manage.py jobqueue import_celery_beat, with the models of the real django-celery-beat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test import modify_settings, override_settings

from jobqueue.api import schedules as api
from jobqueue.models import Schedule
from jobqueue.schedules.expressions import Every, upcoming
from jobqueue.schedules.rows import make_task, parse_expression
from tests.cli.commands import BOTH, CommandResult, jobqueue
from tests.factories import now

schedules = pytest.importorskip("celery.schedules", reason="django-celery-beat needs Django 5.2: see pyproject.toml")
pytestmark = BOTH

ADD = "tests.tasks.add"
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


class Beat:
    """The tables of django-celery-beat, written through its models."""

    def __init__(self, models: Any) -> None:
        self.models = models

    def crontab(self, minute: str = "0", hour: str = "8", timezone: str = "UTC", **fields: str) -> dict[str, Any]:
        row = self.models.CrontabSchedule.objects.create(minute=minute, hour=hour, timezone=timezone, **fields)
        return {"crontab": row}

    def interval(self, every: int = 5, period: str = "minutes") -> dict[str, Any]:
        return {"interval": self.models.IntervalSchedule.objects.create(every=every, period=period)}

    def clocked(self, moment: datetime) -> dict[str, Any]:
        return {"clocked": self.models.ClockedSchedule.objects.create(clocked_time=moment), "one_off": True}

    def add(self, name: str = "one", task: str = ADD, args: str = "[1]", **columns: Any) -> Any:
        kinds = columns.keys() & {"crontab", "interval", "solar", "clocked"}
        columns = columns if kinds else columns | self.interval()
        return self.models.PeriodicTask.objects.create(name=name, task=task, args=args, **columns)


@pytest.fixture
def beat() -> Iterator[Beat]:
    with modify_settings(INSTALLED_APPS={"append": "django_celery_beat"}):
        from django_celery_beat import models

        tables = list(apps.get_app_config("django_celery_beat").get_models())
        with connection.schema_editor() as editor:
            for model in tables:
                editor.create_model(model)
        yield Beat(models)
    for model in filter(admin.site.is_registered, tables):  # the admin found them when the application was added
        admin.site.unregister(model)


def run(*words: object) -> CommandResult:
    return jobqueue("import_celery_beat", *words)


def only(result: CommandResult) -> dict[str, Any]:
    """Return the conversion of the only periodic task, of a run with --json."""
    (conversion,) = result.json
    return dict(conversion)


def refusal() -> str:
    """Return why the only periodic task is refused, as a dry run shows it, too. Nothing may have been written."""
    result = run("--json")
    conversion = only(result)
    assert (conversion["result"], result.code) == ("refused", 1)
    assert run("--json", "--dry-run") == result
    assert not Schedule.objects.exists()
    return " ".join(conversion["notes"])


def imported(*words: object) -> Schedule:
    """Import the only periodic task."""
    result = run(*words)
    assert result.code == 0, result
    return Schedule.objects.get()


class TestCommand:
    def test_dry_run_shows_what_becomes_what(self, beat: Beat) -> None:
        beat.add("report", **beat.crontab("0", "8", "Europe/Berlin", day_of_week="mon-fri"))
        beat.add("gone", "shop.tasks.gone")
        beat.add("celery.backend_cleanup", "celery.backend_cleanup", **beat.crontab(hour="4"))
        result = run("--dry-run")
        table = [re.split("  +", line) for line in result.out.splitlines()]
        assert table[:4] == [
            ["NAME", "CELERY TASK", "TASK", "SCHEDULE", "RESULT"],
            ["celery.backend_cleanup", "celery.backend_cleanup", "not needed"],
            ["gone", "shop.tasks.gone", "refused"],
            ["report", ADD, ADD, "At 08:00, Monday through Friday, Europe/Berlin", "created"],
        ]
        reason = (
            "no task has the name or the dotted path 'shop.tasks.gone'. Declare it, or pass --map shop.tasks.gone=TASK"
        )
        assert f"gone: {reason}." in result.out
        assert result.out.endswith("\nDry run, nothing was written: 1 not needed, 1 refused, 1 created.\n")
        assert (result.code, result.err) == (1, "1 periodic task of Celery beat cannot be imported.")
        assert not Schedule.objects.exists()

    def test_import_creates_schedules_of_people(self, beat: Beat) -> None:
        beat.add("report", **beat.crontab("0", "8", "Europe/Berlin", day_of_week="mon-fri"))
        beat.add("gone", "shop.tasks.gone")
        assert run().code == 1
        row = Schedule.objects.get()
        assert (row.name, row.declared_at, row.task_type, row.overlap) == ("report", "", ADD, "allow")
        assert (row.expression, row.timezone) == ("0 8 * * mon-fri", "Europe/Berlin")
        assert row.next_at is not None

    def test_second_import_changes_nothing(self, beat: Beat) -> None:
        periodic = beat.add(**beat.crontab())
        before = imported()
        periodic.crontab = beat.crontab(hour="9")["crontab"]
        periodic.save()
        result = run("--json")
        assert (result.code, only(result)["result"]) == (0, "exists")
        assert Schedule.objects.values().get() == Schedule.objects.filter(pk=before.pk).values().get()
        assert Schedule.objects.get().expression == "0 8 * * *"

    def test_update_replaces_a_schedule_but_no_pause(self, beat: Beat) -> None:
        periodic = beat.add(**beat.crontab())
        imported()
        api.pause("one", by="ada", reason="holidays")
        periodic.crontab = beat.crontab(hour="9")["crontab"]
        periodic.enabled = False
        periodic.save()
        assert only(run("--dry-run", "--update", "--json"))["result"] == "updated"
        assert Schedule.objects.get().expression == "0 8 * * *"
        row = imported("--update")
        assert (row.expression, row.pause_reason) == ("0 9 * * *", "holidays")

    def test_update_pauses_again_after_a_pause_has_ended(self, beat: Beat) -> None:
        periodic = beat.add()
        imported()
        Schedule.objects.update(paused_at=now() - 2 * HOUR, resume_at=now() - HOUR, pause_reason="holidays")
        periodic.enabled = False
        periodic.save()

        row = imported("--update")

        assert row.is_paused_at(now())
        assert (row.pause_reason, row.resume_at) == ("Disabled in Celery beat", None)

    def test_update_refuses_a_schedule_that_code_declares(self, beat: Beat) -> None:
        beat.add()
        imported()
        Schedule.objects.update(declared_at="shop/tasks.py:7")
        assert only(run("--json"))["result"] == "exists"
        result = run("--update", "--json")
        assert (result.code, only(result)["result"]) == (1, "refused")
        assert only(result)["notes"] == ["code declares a schedule with this name at shop/tasks.py:7."]

    def test_names_are_mapped_by_flags_and_by_a_file(self, beat: Beat, tmp_path: Any) -> None:
        beat.add("a", "old-add")
        beat.add("b", "old-echo")
        path = tmp_path / "names.json"
        path.write_text(json.dumps({"old-add": "tests.tasks.fail", "old-echo": "tests.tasks.echo"}))
        result = run("--map", "old-add=tests.tasks.add", "--map-file", path, "--map", "nobody=tests.tasks.echo")
        assert (result.code, result.err) == (
            0,
            "No periodic task has the name 'nobody', which --map or --map-file contains.\n",
        )
        assert dict(Schedule.objects.values_list("name", "task_type")) == {"a": ADD, "b": "tests.tasks.echo"}

    def test_mapping_to_an_unknown_task_is_refused(self, beat: Beat) -> None:
        beat.add("a", "old")
        result = run("--map", "old=tests.tasks.ad", "--json")
        assert only(result)["notes"][0].startswith("No task is named 'tests.tasks.ad'. Did you mean tests.tasks.add")
        for words in (["--map", "old"], ["--map", "=new"], ["--map-file", "/nonexistent"]):
            assert run(*words).code == 2

    def test_map_file_without_an_object_of_texts_is_refused(self, tmp_path: Any) -> None:
        path = tmp_path / "names.json"
        for text in ("[1]", "{", '{"a": 1}'):
            path.write_text(text)
            assert run("--map-file", path).code == 2

    @pytest.mark.parametrize("name", ["tests.tasks.named", "tests.stable"])
    def test_task_is_found_by_its_name_and_by_its_path(self, beat: Beat, name: str) -> None:
        beat.add(task=name, args="[]")
        assert imported().task_type == "tests.stable"

    def test_backend_is_that_of_the_flag(self, beat: Beat) -> None:
        beat.add()
        assert run("--backend", "sqlite").code == 0
        assert Schedule.objects.using("sqlite").get().backend == "sqlite"
        assert not Schedule.objects.exists()

    def test_site_without_periodic_tasks_is_an_error(self) -> None:
        result = run()
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("Found no periodic tasks: django_celery_beat is not in INSTALLED_APPS")


class TestTables:
    @pytest.mark.parametrize(
        ("every", "period", "seconds"),
        [(2, "days", 172_800), (3, "hours", 10_800), (1, "minutes", 60), (1_500_000, "microseconds", 1.5)],
    )
    def test_interval_continues_after_the_last_run(self, beat: Beat, every: int, period: str, seconds: float) -> None:
        periodic = beat.add(**beat.interval(every, period))
        last = now() - timedelta(seconds=seconds / 2)
        beat.models.PeriodicTask.objects.filter(pk=periodic.pk).update(last_run_at=last)
        row = imported()
        assert parse_expression(row) == Every(seconds=seconds, anchor=last.replace(microsecond=0))

    def test_interval_below_a_second_is_refused(self, beat: Beat) -> None:
        beat.add(**beat.interval(500, "microseconds"))
        assert "an interval must be between a second and ten years" in refusal()

    def test_start_time_is_the_first_tick_of_an_interval(self, beat: Beat) -> None:
        starts_at = now().replace(microsecond=0) + DAY
        periodic = beat.add(**beat.interval(1, "days"), start_time=starts_at)
        beat.models.PeriodicTask.objects.filter(pk=periodic.pk).update(last_run_at=starts_at - 90_000 * SECOND)
        row = imported()
        assert (row.starts_at, row.next_at) == (starts_at, starts_at)

    @override_settings(CELERY_TIMEZONE="Asia/Tokyo")
    def test_crontab_keeps_its_time_zone(self, beat: Beat) -> None:
        beat.add(**beat.crontab("30", "2", "America/New_York"))
        expression = parse_expression(imported())
        assert upcoming(expression, datetime(2026, 12, 24, tzinfo=UTC), 1) == [
            datetime(2026, 12, 24, 7, 30, tzinfo=UTC)
        ]

    def test_crontab_that_needs_both_days_is_refused(self, beat: Beat) -> None:
        beat.add(**beat.crontab(day_of_month="13", day_of_week="fri"))
        assert "both the day of the month (13) and the day of the week (fri) must match" in refusal()

    def test_crontab_that_celery_cannot_read_is_refused(self, beat: Beat) -> None:
        beat.add(**beat.crontab(day_of_week="7"))
        assert refusal() == "Celery cannot read its schedule 0 8 * * 7 (m/h/dM/MY/d) UTC: Invalid end range: 7 > 6."

    def test_solar_is_refused_by_name(self, beat: Beat) -> None:
        solar = beat.models.SolarSchedule.objects.create(event="sunrise", latitude="52.5", longitude="13.4")
        beat.add(solar=solar)
        assert refusal() == "its schedule is solar, which has no counterpart: Sunrise (52.500000, 13.400000)."

    def test_row_without_a_schedule_is_refused(self, beat: Beat) -> None:
        beat.models.PeriodicTask.objects.bulk_create([beat.models.PeriodicTask(name="one", task=ADD)])
        assert refusal() == "it must have one schedule, but has none."

    def test_clocked_has_one_tick(self, beat: Beat) -> None:
        moment = now() + HOUR
        periodic = beat.add(**beat.clocked(moment))
        assert only(run("--dry-run", "--json"))["times"] == f"Once, at {moment:%Y-%m-%d %H:%M:%S} UTC"
        row = imported()
        assert (row.starts_at, row.next_at, row.ends_at) == (moment, moment, moment)
        assert parse_expression(row).next_after(moment) == moment + DAY
        beat.models.ClockedSchedule.objects.filter(pk=periodic.clocked_id).update(clocked_time=now() - HOUR)
        assert only(run("--json"))["result"] == "exists"

    def test_clocked_in_the_past_is_refused_unless_it_ran(self, beat: Beat) -> None:
        periodic = beat.add(**beat.clocked(now() - HOUR))
        assert "and beat has not sent it" in refusal()
        beat.models.PeriodicTask.objects.filter(pk=periodic.pk).update(total_run_count=1)
        assert only(run("--json"))["result"] == "not needed"

    def test_one_off_ends_at_its_first_tick(self, beat: Beat) -> None:
        starts_at = now().replace(microsecond=0) + DAY
        periodic = beat.add(**beat.interval(1, "hours"), one_off=True, start_time=starts_at)
        row = imported()
        assert (row.starts_at, row.next_at, row.ends_at) == (starts_at, starts_at, starts_at)
        Schedule.objects.all().delete()
        for changed in ({"total_run_count": 1}, {"total_run_count": 0, "enabled": False}):
            beat.models.PeriodicTask.objects.filter(pk=periodic.pk).update(**changed)
            assert only(run("--json"))["result"] == "not needed"

    def test_disabled_task_becomes_a_paused_schedule(self, beat: Beat) -> None:
        beat.add(enabled=False)
        assert only(run("--dry-run", "--json"))["notes"] == ["It is disabled in Celery, so the schedule is paused."]
        row = imported()
        assert (row.paused_at is None, row.pause_reason, row.resume_at) == (False, "Disabled in Celery beat", None)

    def test_expires_ends_the_schedule(self, beat: Beat) -> None:
        expires = now().replace(microsecond=0) + DAY
        beat.add(**beat.interval(12, "hours"), start_time=expires - DAY, expires=expires)
        row = imported()
        assert (row.next_at, row.ends_at) == (expires - DAY / 2, expires - timedelta(microseconds=1))

    def test_task_that_expires_before_its_next_run_is_not_needed(self, beat: Beat) -> None:
        expires = now().replace(microsecond=0) + DAY
        # Celery sends nothing at the moment itself.
        beat.add("a", **beat.interval(1, "days"), start_time=expires - DAY, expires=expires)
        beat.add("b", **beat.crontab(), expires=now() - HOUR)
        result = run("--json")
        assert (result.code, [entry["result"] for entry in result.json]) == (0, ["not needed", "not needed"])

    def test_expire_seconds_and_queue_are_those_of_each_task(self, beat: Beat) -> None:
        beat.add(expire_seconds=90, queue="reports")
        task = make_task(imported(), now())
        assert (task.queue_name, task.expires_after_seconds) == ("reports", 90.0)

    @pytest.mark.parametrize(
        ("broker", "priority", "expected"),
        [("amqp://", 7, 7), ("amqp://", 255, 100), ("redis://localhost/1", 7, -7), ("sentinel://localhost", 0, 0)],
    )
    def test_priority_is_reversed_with_redis(self, beat: Beat, broker: str, priority: int, expected: int) -> None:
        beat.add(priority=priority)
        with override_settings(CELERY_BROKER_URL=broker):
            notes = only(run("--dry-run", "--json"))["notes"]
            assert make_task(imported(), now()).priority == expected
        assert notes == ([] if priority == expected else [f"Its priority becomes {expected}."])

    def test_options_of_the_transport_are_ignored_by_name(self, beat: Beat) -> None:
        beat.add(exchange="e", routing_key="r", headers='{"a": 1}')
        assert only(run("--json"))["notes"] == ["Celery's exchange, headers, routing_key will be ignored."]

    def test_arguments_become_those_of_the_task(self, beat: Beat) -> None:
        beat.add(args='["é"]', kwargs='{"b": {"c": null}}')
        task = make_task(imported(), now())
        assert (json.loads(task.args), json.loads(task.kwargs)) == (["é"], {"b": {"c": None}})

    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            ({"args": "[1, 2, 3]"}, "too many positional arguments"),
            ({"kwargs": '{"c": 1}'}, "unexpected keyword argument 'c'"),
            ({"args": "{}"}, "its args must be a list, not '{}'"),
            ({"args": "[1"}, "its args cannot be read"),
            ({"args": '[{"__type__": "uuid", "__value__": "0"}]'}, "only Celery can read the value"),
        ],
    )
    def test_arguments_that_do_not_fit_are_refused(self, beat: Beat, columns: dict[str, str], reason: str) -> None:
        beat.add(**columns)
        assert reason in refusal()


class TestSettings:
    def convert(self, entry: Any) -> Schedule:
        with override_settings(CELERY_BEAT_SCHEDULE={"one": entry}):
            return imported()

    def refusal_of(self, entry: Any) -> str:
        with override_settings(CELERY_BEAT_SCHEDULE={"one": entry}):
            return refusal()

    @override_settings(CELERY_TIMEZONE="Europe/Berlin")
    def test_crontab_has_the_time_zone_of_celery(self) -> None:
        row = self.convert({"task": ADD, "schedule": schedules.crontab(minute=0, hour="7-9"), "args": (1,)})
        assert (row.expression, row.timezone) == ("0 7-9 * * *", "Europe/Berlin")

    def test_crontab_without_a_time_zone_has_utc(self) -> None:
        row = self.convert({"task": ADD, "schedule": schedules.crontab(), "args": (1,)})
        assert (row.expression, row.timezone) == ("* * * * *", "UTC")

    def test_seconds_become_an_interval(self) -> None:
        row = self.convert({"task": ADD, "schedule": 30.0, "kwargs": {"a": 1}})
        assert parse_expression(row) == Every(seconds=30)

    def test_options_become_those_of_the_task(self) -> None:
        options = {"queue": "reports", "expires": 60, "priority": 3, "serializer": "json"}
        row = self.convert({"task": ADD, "schedule": timedelta(minutes=5), "args": [1], "options": options})
        task = make_task(row, now())
        assert (task.queue_name, task.expires_after_seconds, task.priority) == ("reports", 60.0, 3)

    def test_moment_that_expires_ends_the_schedule(self) -> None:
        expires = now() + DAY
        row = self.convert({"task": ADD, "schedule": 60, "args": [1], "options": {"expires": expires}})
        assert row.ends_at == expires - timedelta(microseconds=1)

    @pytest.mark.parametrize(
        ("entry", "reason"),
        [
            ({"task": ADD}, "it must be a dict with 'task' and 'schedule'"),
            ("every day", "it must be a dict with 'task' and 'schedule'"),
            ({"task": ADD, "schedule": "0 8 * * *"}, "its schedule is a str, which has no counterpart"),
            ({"task": ADD, "schedule": 60}, "missing a required argument: 'a'"),
            ({"task": ADD, "schedule": 60, "options": {"countdown": 5}}, "no counterpart of the option countdown"),
            ({"task": ADD, "schedule": 60, "args": [object()]}, "object is not JSON"),
            ({"task": ADD, "schedule": 0, "args": [1]}, "an interval must be between a second and ten years"),
        ],
    )
    def test_entry_without_a_counterpart_is_refused(self, entry: Any, reason: str) -> None:
        assert reason in self.refusal_of(entry)

    def test_solar_is_refused_by_name(self) -> None:
        solar = type("solar", (schedules.BaseSchedule,), {})()  # Celery's own needs a package for astronomy
        assert "its schedule is solar, which has no counterpart" in self.refusal_of({"task": ADD, "schedule": solar})

    def test_row_of_the_table_wins_over_the_entry(self, beat: Beat) -> None:
        beat.add("one", **beat.crontab())
        row = self.convert({"task": ADD, "schedule": 60, "args": [1]})
        assert row.expression == "0 8 * * *"
