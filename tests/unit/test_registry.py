"""The registry and the system checks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.checks.registry import registry as registry_of_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from jobqueue import Actor, Concurrency, Every, task, workflow
from jobqueue.backend import JobQueueBackend
from jobqueue.conf.compat import PACKAGE, InvalidTask
from jobqueue.declarations import registry
from jobqueue.declarations.checks import check_any_backend, check_backends, check_task_names
from jobqueue.declarations.schedules import declarations
from jobqueue.values.states import LimitKind
from tests import tasks

pytestmark = pytest.mark.usefixtures("own_registry")


def first() -> None: ...


def second() -> None: ...


POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}


def problems(**params: Any) -> list[str]:
    return [message.id for message in JobQueueBackend("default", params).check()]


def test_tasks_of_installed_apps_are_registered() -> None:
    assert registry.get("tests.tasks.add") is tasks.add
    assert registry.get("tests.stable") is tasks.named
    assert registry.get("os.system") is None
    assert list(registry.all()) == sorted(registry.all())


def test_name_used_by_two_functions_is_a_check_error() -> None:
    declared = task(name="mail")(first)
    task(name="mail")(second)
    assert registry.get("mail") is declared
    [message] = check_task_names()
    assert message.id == "jobqueue.E002"
    here = __name__.replace(".", "/")
    lines = [function.__code__.co_firstlineno for function in (first, second)]
    assert f"{__name__}.first in {here}.py:{lines[0]} and " in message.msg
    assert message.msg.endswith(f"{__name__}.second in {here}.py:{lines[1]}.")


def test_alias_is_the_same_task_and_no_other_name_of_the_lists() -> None:
    moved = task(aliases=["old.mail", "older.mail"])(first)
    assert registry.get("old.mail") is registry.get("older.mail") is registry.get(moved.task_type) is moved
    assert "old.mail" in registry.by_name()
    assert "old.mail" not in registry.all()
    assert registry.name_now("older.mail") == moved.task_type
    assert registry.all_names_of("old.mail") == (moved.task_type, "old.mail", "older.mail")
    assert check_task_names() == []


def test_alias_that_another_function_has_is_a_check_error() -> None:
    task(name="mail")(first)
    task(aliases=["mail"])(second)
    [message] = check_task_names()
    assert message.id == "jobqueue.E002"
    assert message.msg.startswith("The task 'mail' is declared twice: ")
    assert "aliases=" in str(message.hint)


@pytest.mark.parametrize("aliases", ["old.mail", [""], [3], ["jobqueue.mail"], [f"{__name__}.first"], None])
def test_wrong_aliases_are_refused(aliases: Any) -> None:
    with pytest.raises(InvalidTask, match="aliases must"):
        task(aliases=aliases)(first)


def test_limits_and_schedule_of_a_moved_task_keep_their_first_name() -> None:
    task(aliases=["old.mail", "older.mail"], concurrency=Concurrency(2), schedule=Every(hours=1))(first)
    assert (LimitKind.CONCURRENCY, "old.mail") in registry.declared_limits()
    assert "old.mail" in {declaration.name for declaration in declarations()}


def test_subclass_of_an_actor_does_not_inherit_its_aliases() -> None:
    names = {"poll": lambda self, context: None, "__module__": __name__}
    album: Any = type("Album", (Actor,), names, aliases=["old.Album"])
    photos: Any = type("Photos", (album,), {"__module__": __name__})
    assert registry.get("old.Album") is album.task
    assert photos.task.aliases == ()
    assert check_task_names() == []


def test_workflow_takes_aliases() -> None:
    def ship(context: Any) -> None: ...

    ship.__qualname__ = "ship"
    declared = workflow(aliases=["old.ship"])(ship)
    assert registry.get("old.ship") is declared


def test_reloaded_function_replaces_old_one() -> None:
    task(first)
    namespace: dict[str, Any] = {"__name__": first.__module__}
    exec("def first(): ...", namespace)
    again = task(namespace["first"])
    assert registry.get(again.task_type) is again
    assert check_task_names() == []


def test_copies_do_not_replace_declaration() -> None:
    declared = task(first)
    declared.using(priority=3)
    task(max_attempts=9)(first)
    assert registry.get(declared.task_type) is declared
    assert check_task_names() == []


def test_valid_settings_have_no_problems() -> None:
    assert problems() == []
    assert problems(OPTIONS={"DATABASE": "sqlite"}) == []


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"POL_INTERVAL": 1}, ["jobqueue.E004"]),
        ({"AGING": -1, "NOTIFY": 1}, ["jobqueue.E004", "jobqueue.E004"]),
        ({"DATABASE": "queue"}, ["jobqueue.E005"]),
        ({"DATABASE": 5}, ["jobqueue.E004"]),
        ({"RETENTION": {"FAILED": float("inf")}}, ["jobqueue.E004"]),  # None keeps tasks without limit
        ({"RETENTION": {"FAILED": float("nan")}}, ["jobqueue.E004"]),
        ({"RETENTION": {"FAILED": 10**12}}, ["jobqueue.E004"]),
        ({"RETENTION": {"FAILED": -1}}, ["jobqueue.E004"]),
        ({"TICK_RETENTION": -1}, ["jobqueue.E004"]),
    ],
)
def test_wrong_options_are_check_errors(options: dict[str, Any], ids: list[str]) -> None:
    assert problems(OPTIONS=options) == ids


@pytest.mark.parametrize("options", [None, ["NOTIFY"]])
def test_options_of_wrong_type_are_one_error(options: Any) -> None:
    (message,) = JobQueueBackend("default", {"OPTIONS": options}).check()
    assert "['OPTIONS']: must be a dict, not " in message.msg


def test_queues_given_as_text_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"must be a list such as \['emails'\], not a text"):
        JobQueueBackend("default", {"QUEUES": "emails"})


def test_unknown_option_error_suggests_the_nearest() -> None:
    similar, far = JobQueueBackend("default", {"OPTIONS": {"POL_INTERVAL": 1, "COLOUR": 2}}).check()
    assert similar.msg.startswith(
        "TASKS['default']['OPTIONS']: unknown option 'POL_INTERVAL' (did you mean 'POLL_INTERVAL'?)"
    )
    for message in (similar, far):
        assert "; options are DATABASE, HEARTBEAT_TIMEOUT, " in message.msg
    assert "did you mean" not in far.msg


def test_unknown_key_beside_options_is_an_error_that_suggests_the_nearest() -> None:
    params = {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUE": ["emails"], "RETENTION": {}, "colour": 1}
    similar, option, far = JobQueueBackend("default", params).check()
    assert similar.id == "jobqueue.E013"
    assert similar.msg == (
        "TASKS['default']: unknown key 'QUEUE' (did you mean 'QUEUES'?); keys are BACKEND, QUEUES, OPTIONS."
    )
    assert "unknown key 'RETENTION' (it belongs in OPTIONS); keys" in option.msg
    assert "unknown key 'colour'; keys" in far.msg


def test_unknown_database_error_has_a_hint() -> None:
    (message,) = JobQueueBackend("default", {"OPTIONS": {"DATABASE": "queue"}}).check()
    assert "TASKS['default']" in message.msg
    assert message.hint


@pytest.mark.parametrize(
    ("database", "ids"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, ["jobqueue.W001"]),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "x.sqlite3"}, ["jobqueue.W002"]),
        ({"ENGINE": "django.db.backends.mysql", "NAME": "x"}, ["jobqueue.E006"]),
        ({"ENGINE": "django.db.backends.dummy", "NAME": "x"}, ["jobqueue.E008"]),
        (POSTGRESQL | {"OPTIONS": {"pool": True}}, ["jobqueue.W003"]),
        (POSTGRESQL | {"OPTIONS": {"pool": {"min_size": 2, "max_size": 11}}}, ["jobqueue.W003"]),
        (POSTGRESQL | {"OPTIONS": {"pool": {"min_size": 2, "max_size": 12}}}, []),
        (POSTGRESQL | {"OPTIONS": {"pool": False}}, []),
    ],
)
def test_unsuitable_database_is_a_check_message(
    database: dict[str, Any], ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.conf import settings
    from django.db import connections

    defaults = {"TIME_ZONE": None, "CONN_MAX_AGE": 0, "AUTOCOMMIT": True, "ATOMIC_REQUESTS": False}
    monkeypatch.setitem(settings.DATABASES, "other", defaults | {"OPTIONS": {}, "TEST": {}} | database)
    monkeypatch.setattr(connections, "settings", {**connections.settings, "other": settings.DATABASES["other"]})
    try:
        assert problems(OPTIONS={"DATABASE": "other"}) == ids
    finally:
        if "other" in [connection.alias for connection in connections.all(initialized_only=True)]:
            del connections["other"]


@pytest.mark.parametrize(("installed", "ids"), [(True, ["jobqueue.W011"]), (False, [])])
def test_psycopg2_beside_psycopg_is_named(installed: bool, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.declarations.checks.find_spec", lambda name: object() if installed else None)

    messages = JobQueueBackend("default", {"OPTIONS": {}}).check()

    assert [message.id for message in messages] == ids
    assert all(not message.is_serious(checks.ERROR) for message in messages)


SITE_WITHOUT_LIBPQ = """
import ctypes.util, sys
sys.modules["psycopg_binary"] = sys.modules["psycopg_c"] = None
ctypes.util.find_library = lambda name: None
from django.conf import settings
settings.configure(INSTALLED_APPS=["jobqueue"], USE_TZ=True)
import django
django.setup()
from django.core import checks
print([message.id for message in checks.run_checks()])
print(*(message.hint for message in checks.run_checks()))
"""


def test_psycopg_without_libpq_is_a_check_error_that_says_what_to_install() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SITE_WITHOUT_LIBPQ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['jobqueue.E016']\npip install 'psycopg[binary]'")


@override_settings(TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "OPTIONS": {"POLL": 1}}})
def test_each_problem_is_reported_once() -> None:
    registered: list[Any] = [
        check
        for check in registry_of_checks.get_checks()
        if check.__module__ in (f"{PACKAGE}.checks", "jobqueue.declarations.checks")
    ]
    assert [message.id for check in registered for message in check(app_configs=None)] == ["jobqueue.E004"]


@override_settings(TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "OPTIONS": {"POLL": 1}}})
@pytest.mark.parametrize(
    ("package", "ids"),
    [("django.tasks", []), ("tests", []), ("not_installed", ["jobqueue.E004"])],
    ids=["Django", "backport is an app", "backport is none"],
)
def test_backends_are_checked_if_the_framework_does_not(
    monkeypatch: pytest.MonkeyPatch, package: str, ids: list[str]
) -> None:
    monkeypatch.setattr("jobqueue.declarations.checks.PACKAGE", package)
    assert [message.id for message in check_backends()] == ids


WITHOUT_FRAMEWORK = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: (
    None if name in ("django.tasks", "django_tasks") else find_spec(name, *args)
)
import django
from django.conf import settings
from django.core.management import call_command
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "jobqueue", "tests"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x.sqlite3"}},
    TASKS={},
)
import jobqueue
jobqueue.Backoff, jobqueue.GiveUp
try:
    jobqueue.task
except django.core.exceptions.ImproperlyConfigured as error:
    print(error)
django.setup()
call_command("check")
"""


def test_missing_backport_fails_import_and_check(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORK],
        cwd=tmp_path,  # the check creates its database file here
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert "Run: pip install 'django-tasks>=0.12'" in ran.stdout
    assert "(jobqueue.E001)" in ran.stderr
    assert "HINT: pip install 'django-tasks>=0.12'" in ran.stderr


IMPORTABLE = """
import jobqueue
from jobqueue import Backoff, FunctionTask, Retry, task
import sys
assert "jobqueue.models" not in sys.modules
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}})
def add(a): ...
@task(max_attempts=3)
def double(number: int) -> int: ...
assert "jobqueue.models" not in sys.modules
assert not {"django.db.backends.postgresql", "psycopg"} & set(sys.modules)
"""


def test_tasks_can_be_declared_before_apps_are_loaded() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTABLE],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.returncode == 0, ran.stderr


def test_site_whose_tasks_do_not_enter_the_queue_is_an_error(settings: Any) -> None:
    assert check_any_backend() == []

    settings.TASKS = {"default": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"}}

    [message] = check_any_backend()
    assert (message.id, message.level) == ("jobqueue.E012", checks.ERROR)
    assert "jobqueue.backend.JobQueueBackend" in str(message.hint)
