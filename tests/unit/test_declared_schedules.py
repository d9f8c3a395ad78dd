"""Schedules in code: what can be declared, and that each mistake is a system check with file and line."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core import checks
from django.test import override_settings

from jobqueue import Actor, Cron, Done, Every, schedule, task
from jobqueue.conf.compat import PACKAGE
from jobqueue.declarations.schedules import Declaration, declarations
from tests import tasks
from tests.tasks import add

pytestmark = pytest.mark.usefixtures("own_schedules")

CHECKOUT = Path(__file__).parents[2]
HERE = "tests/unit/test_declared_schedules.py"
HOURLY = Every(hours=1)
SPRING = datetime(2030, 3, 1, tzinfo=UTC)
declare: Any = schedule  # without its types, as in a file that no type checker reads


def no_arguments() -> None:
    """Do nothing."""


async def no_arguments_async() -> None:
    """Do nothing."""


def one_argument(page: str) -> None:
    """Do nothing."""


class Reminder(Actor):
    def poll(self, context: Any, order_id: int = 0) -> Done:
        return Done(order_id)


Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a file of a site."""

    def load(text: str) -> ModuleType:
        (tmp_path / "site_tasks.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "site_tasks", raising=False)
        return import_module("site_tasks")

    return load


def messages() -> list[checks.CheckMessage]:
    """Return what `manage.py check` reports of schedules."""
    return [message for message in checks.run_checks(databases=[]) if message.id in ("jobqueue.E011", "jobqueue.W005")]


def only() -> Declaration:
    (declaration,) = declarations()
    assert messages() == []
    return declaration


def find_line(text: str) -> int:
    """Return the first line of this file that begins with a text."""
    return next(number for number, line in enumerate(linecache.getlines(__file__), 1) if line.strip().startswith(text))


def test_schedule_takes_the_options_of_schedule_and_task() -> None:
    schedule("warm", add, HOURLY, args=[1], queue_name="cache", overlap="skip", catch_up="latest", jitter=30, key="k")

    columns = only().columns()
    new_task = columns["new_task"]
    assert (new_task["queue_name"], new_task["args"], new_task["key"]) == ("cache", "[1]", "k")
    assert (columns["jitter_seconds"], columns["expression"]) == (30.0, "@every 3600")
    line = find_line('schedule("warm"')
    assert columns["declared_at"] == f"{HERE}:{line}"


@pytest.mark.parametrize(
    ("body", "first_line"), [(no_arguments, "def no_arguments("), (no_arguments_async, "async def no_arguments")]
)
def test_task_with_a_schedule_gives_it_its_own_name(body: Callable[[], Any], first_line: str) -> None:
    task(schedule=Cron("0 8 * * 1-5", timezone="Europe/Berlin"), queue_name="reports")(body)

    declaration = only()
    assert declaration.name == f"tests.unit.test_declared_schedules.{body.__name__}"
    assert declaration.location == f"{HERE}:{find_line(first_line)}"
    assert declaration.columns()["timezone"] == "Europe/Berlin"
    assert declaration.columns()["new_task"]["queue_name"] == "reports"


def test_name_of_the_task_is_the_name_of_its_schedule() -> None:
    declared = task(schedule=HOURLY, name="shop.report")(no_arguments)
    declared.using(priority=3)  # a copy declares nothing

    assert only().name == "shop.report"


ACTORS = """\
from jobqueue import Actor, Done, Every

class Nightly(Actor, abstract=True, schedule=Every(hours=1)):
    def poll(self, context):
        return Done()

class One(Nightly, name="one"): ...
class Two(Nightly): ...
class Without(Nightly, schedule=None): ...
"""


def test_actors_inherit_a_schedule_and_may_remove_it(load: Load) -> None:
    load(ACTORS)

    first, two = declarations()
    assert (first.name, first.location, first.columns()["task_type"]) == ("one", "site_tasks.py:7", "one")
    assert (two.name, two.location) == ("site_tasks.Two", "site_tasks.py:8")
    assert messages() == []


def test_actor_without_source_is_declared_in_its_module() -> None:
    exec(ACTORS, {"__name__": "shell"})

    assert {declaration.location for declaration in declarations()} == {"shell"}
    assert messages() == []


@pytest.mark.parametrize("scheduled", [Reminder, Reminder.task, Reminder.using(priority=1), tasks.add_later])
def test_schedule_takes_actors_and_async_tasks(scheduled: Any) -> None:
    schedule("each-hour", scheduled, HOURLY, args=[7])

    assert only().columns()["new_task"]["args"] == "[7]"


@pytest.mark.parametrize(
    ("name", "scheduled", "expression", "options", "problem"),
    [
        ("a", add, Cron("61 * * * *"), {}, "the minute of '61 * * * *' is not valid"),
        ("a", add, Cron("* *"), {}, "'* *' has 2 fields; expected minute hour"),
        ("a", add, Cron(5), {}, "a cron expression must be a text such as '0 8 * * *', not 5"),  # type: ignore[arg-type]
        ("a", add, Cron(), {}, "'' has 0 fields"),
        ("a", add, Cron("@daily", tz="UTC"), {}, "Cron() takes no argument 'tz'"),  # type: ignore[arg-type]
        ("a", add, Cron("0 0 * * *", timezone="Mars"), {}, "this host has no time zone 'Mars'"),
        ("a", add, Cron("0 0 * * *", timezone=ZoneInfo("UTC")), {}, "this host has no time zone"),  # type: ignore[arg-type]
        ("a", add, Cron("0 0 * * *", timezone=[]), {}, "this host has no time zone []"),  # type: ignore[arg-type]
        ("a", add, Every(), {}, "an interval must be between a second and ten years, not 0:00:00"),
        ("a", add, Every(5), {}, "an interval must be a timedelta or units such as minutes=5, not 5"),  # type: ignore[arg-type]
        ("a", add, Every(minutes="5"), {}, "not {'minutes': '5'}"),  # type: ignore[arg-type]
        ("a", add, Every(minute=5), {}, "not {'minute': 5}"),  # type: ignore[call-arg]
        ("a", add, Every(timedelta(hours=1), minutes=5), {}, "an interval must be a timedelta or units"),
        ("a", add, Every(days=10**12), {}, "not {'days': 1000000000000}"),
        ("a", add, Every(seconds=float("nan")), {}, "not {'seconds': nan}"),
        ("a", add, Every(hours=1, anchor=None), {}, "anchor must be a datetime with a time zone, not None"),  # type: ignore[arg-type]
        ("a", add, "0 8 * * *", {}, "it needs a Cron or an Every, not '0 8 * * *'"),
        ("a", add, 5, {}, "it needs a Cron or an Every, not 5"),
        ("a", add, HOURLY, {"args": ()}, "missing a required argument: 'a'"),
        ("a", add, HOURLY, {"args": [1, 2, 3]}, "too many positional arguments"),
        ("a", add, HOURLY, {"kwargs": {"a": 1, "c": 1}, "args": ()}, "unexpected keyword argument 'c'"),
        ("a", add, HOURLY, {"args": [object()]}, "add()"),
        ("a", add, HOURLY, {"args": "home"}, "args must be a list or a tuple, not 'home'"),
        ("a", add, HOURLY, {"args": 5}, "args must be a list or a tuple, not 5"),
        ("a", add, HOURLY, {"kwargs": [("a", 1)]}, "kwargs must be a dict"),
        ("a", add, HOURLY, {"overlpa": "skip"}, "no option 'overlpa' (did you mean 'overlap'?); options are args"),
        ("a", add, HOURLY, {"overlap": "maybe"}, "overlap must be one of 'skip', 'queue_one', 'allow'"),
        ("a", add, HOURLY, {"overlap": []}, "overlap must be one of"),
        ("a", add, HOURLY, {"catch_up": "all"}, "needs overlap='allow'"),
        ("a", add, HOURLY, {"jitter": -1}, "jitter must be seconds or a timedelta"),
        ("a", add, HOURLY, {"jitter": "30"}, "jitter must be seconds or a timedelta"),
        ("a", add, HOURLY, {"starts_at": datetime(2026, 1, 1)}, "starts_at must be a datetime with a time zone"),
        ("a", add, HOURLY, {"ends_at": "tomorrow"}, "ends_at must be a datetime with a time zone"),
        ("a", add, HOURLY, {"priority": 1000}, "priority"),
        ("a", add, HOURLY, {"run_after": timedelta(1)}, "must have no run_after"),
        ("a", add.using(key="k", unique_for=60), HOURLY, {}, "must have no on_conflict, unique_for or debounce"),
        ("a", add, HOURLY, {"on_conflict": "replace"}, "must have no on_conflict, unique_for or debounce"),
        ("a", add, HOURLY, {"expires": datetime(2030, 1, 1, tzinfo=UTC)}, "expires of its task must be a timedelta"),
        ("a", add, HOURLY, {"backend": "elsewhere"}, "TASKS has no backend 'elsewhere'"),
        ("a", add.func, HOURLY, {}, "must be declared with jobqueue.task"),
        ("a", Actor, HOURLY, {}, "or be an actor, not <class 'jobqueue.declarations.actor.Actor'>"),
        ("a", "tests.tasks.add", HOURLY, {}, "must be declared with jobqueue.task"),
        ("", add, HOURLY, {}, "its name must be a text of 1 to 200 characters, not ''"),
        (["a"], add, HOURLY, {}, "its name must be a text of 1 to 200 characters, not ['a']"),
        ("a" * 201, add, HOURLY, {}, "its name must be a text of 1 to 200 characters"),
    ],
)  # fmt: skip
def test_mistake_is_an_error_with_file_and_line(
    name: Any, scheduled: Any, expression: Any, options: dict[str, Any], problem: str
) -> None:
    declare(name, scheduled, expression, **{"args": [1], **options})

    (message,) = messages()
    assert (message.id, message.level) == ("jobqueue.E011", checks.ERROR)
    assert problem in message.msg
    line = find_line("declare(name")
    assert message.msg.endswith(f". It is declared in {HERE}:{line}.")


@pytest.mark.parametrize(
    ("body", "expression", "problem"),
    [
        (no_arguments, 5, "it needs a Cron or an Every, not 5"),
        (no_arguments, Cron("@never"), "'@never' is not one of @yearly"),
        (no_arguments, [HOURLY], "it needs a Cron or an Every, not [Every("),
        (one_argument, HOURLY, "missing a required argument: 'page'"),
    ],
)
def test_mistake_in_the_schedule_of_a_task_is_an_error(body: Any, expression: Any, problem: str) -> None:
    task(schedule=expression)(body)

    (message,) = messages()
    assert problem in message.msg
    line = find_line(f"def {body.__name__}(")
    assert f"It is declared in {HERE}:{line}." in message.msg


def test_all_mistakes_of_a_declaration_are_found_at_once() -> None:
    declare(
        "",
        add,
        Cron("61 * * * *", timezone="Mars"),
        overlap="maybe",
        max_catch_up=0,
        catch_up_window=timedelta(days=9999),
        starts_at=datetime(2026, 1, 2, tzinfo=UTC),
        ends_at=datetime(2026, 1, 1, tzinfo=UTC),
        priority=1000,
        timeout=-1,
    )

    (declaration,) = declarations()
    assert [problem.field for problem in declaration.problems()] == [
        "name", "expression", "timezone", "overlap", "max_catch_up", "catch_up_window", "ends_at", "priority",
        "timeout", "args",
    ]  # fmt: skip


def test_two_schedules_of_one_name_are_an_error() -> None:
    schedule("report", add, HOURLY, args=[1])
    schedule("report", add, Every(hours=2), args=[1])
    schedule("report", add.using(backend="sqlite"), HOURLY, args=[1])  # of another backend

    (message,) = messages()
    line = find_line('schedule("report"')
    assert f"'report' is declared twice: in {HERE}:{line} and in {HERE}:{line + 1}." in message.msg


def test_one_name_for_all_turns_of_a_loop_is_an_error() -> None:
    for page in (1, 2):
        schedule("warm", add, HOURLY, args=[page])

    (message,) = messages()
    assert "'warm' is declared twice" in message.msg


def test_schedule_with_the_name_of_a_scheduled_task_is_an_error() -> None:
    task(schedule=HOURLY, name="shop.report")(no_arguments)
    schedule("shop.report", add, HOURLY, args=[1])

    (message,) = messages()
    assert "'shop.report' is declared twice" in message.msg


LOOP = """\
from jobqueue import Every, schedule
from tests.tasks import add
for n in (1, 2):
    schedule(f'each-{n}', add, Every(hours=n), args=[n])
"""


def test_module_that_is_loaded_again_declares_no_duplicates(load: Load) -> None:
    module = load(LOOP)
    assert [declaration.location for declaration in declarations()] == ["site_tasks.py:4"] * 2
    reload(module)

    assert [declaration.name for declaration in declarations()] == ["each-1", "each-2"]
    assert messages() == []


def test_schedule_for_another_backend_is_a_warning() -> None:
    other = {"default": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"}}
    with override_settings(TASKS=other):
        schedule("report", add, HOURLY, args=[1])

        (message,) = messages()
    assert (message.id, message.level) == ("jobqueue.W005", checks.WARNING)
    assert "The schedule 'report' never fires: the backend 'default' is not a JobQueueBackend." in message.msg


@pytest.mark.parametrize(
    ("expression", "starts_at", "ends_at"),
    [
        (Cron("0 0 */30 2 1#5", timezone="UTC"), SPRING, None),  # 30 February never comes
        (Cron("0 8 1 1 *", timezone="UTC"), SPRING, SPRING + timedelta(days=30)),
        (Every(days=7, anchor=SPRING), SPRING + timedelta(days=1), SPRING + timedelta(days=6)),
    ],
)
def test_schedule_without_ticks_is_a_warning_with_file_and_line(
    expression: Cron | Every, starts_at: datetime, ends_at: datetime | None
) -> None:
    schedule("report", add, expression, args=[1], starts_at=starts_at, ends_at=ends_at)

    (message,) = messages()
    line = find_line('schedule("report", add, expression')
    assert (message.id, message.level) == ("jobqueue.W005", checks.WARNING)
    assert "The schedule 'report' never fires: its expression has no tick" in message.msg
    assert f"It is declared in {HERE}:{line}." in message.msg


def test_schedule_whose_only_tick_is_its_start_fires() -> None:
    schedule("report", add, Every(days=7, anchor=SPRING), args=[1], starts_at=SPRING, ends_at=SPRING)
    schedule("ended", add, HOURLY, args=[1], ends_at=datetime(2020, 1, 1, tzinfo=UTC))

    assert messages() == []


SETTINGS = """\
SECRET_KEY = "shop"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "jobqueue", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
TASKS = {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": []}}
USE_TZ = True
"""
RIGHT = """\
from jobqueue import Cron, Every, schedule, task

@task
def warm_cache(page: str) -> None: ...

@task(schedule=Cron("0 8 * * 1-5", timezone="Europe/Berlin"))
def morning_report() -> None: ...

schedule("warm-cache", warm_cache, Every(minutes=5), args=["home"], queue_name="cache", overlap="skip", catch_up="latest", jitter=30)
"""  # noqa: E501
WRONG = """\
from jobqueue import Cron, Every, schedule, task

@task(schedule=5)
def report() -> None: ...

schedule("unknown-option", report, Cron("0 8 * *"), overlpa="skip")
schedule("no-interval", report, Every())
schedule("no-interval", report, Every(minute=5))
"""


REPORT = re.compile(r"\(jobqueue\.E011\) The schedule '([\w.-]+)'.+?(shop/tasks\.py:\d+)\.$", re.MULTILINE)


@pytest.mark.parametrize(
    ("tasks_file", "reported"),
    [
        (RIGHT, []),
        (
            WRONG,
            [
                ("no-interval", "shop/tasks.py:7"),
                ("no-interval", "shop/tasks.py:8"),
                ("no-interval", "shop/tasks.py:8"),
                ("shop.tasks.report", "shop/tasks.py:3"),
                ("unknown-option", "shop/tasks.py:6"),
                ("unknown-option", "shop/tasks.py:6"),
            ],
        ),
    ],
    ids=["right", "wrong"],
)
def test_manage_py_check_reports_mistakes(tmp_path: Path, tasks_file: str, reported: list[tuple[str, str]]) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    for name, text in {"__init__.py": "", "settings.py": SETTINGS, "tasks.py": tasks_file}.items():
        (shop / name).write_text(text)

    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": f"{tmp_path}:{CHECKOUT}"}
    command = [sys.executable, "-m", "django", "check"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ran.returncode, "Traceback" in ran.stderr) == (bool(reported), False), ran.stderr
    assert sorted(REPORT.findall(ran.stderr)) == reported
