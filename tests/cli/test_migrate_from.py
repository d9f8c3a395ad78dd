"""manage.py jobqueue migrate_from: the scan of a code base for Celery and other queues."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jobqueue.contrib.celery import NotSupported
from jobqueue.contrib.celery.options import REFUSED
from jobqueue.management.migrate_from.source import VERSION
from jobqueue.management.migrate_from.systems import EFFECTS, Counterpart, system_named, system_names
from tests.cli.commands import CommandResult, jobqueue

CELERY_APP = """
    from celery import Celery

    app = Celery("shop")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.autodiscover_tasks()
"""
TASKS = """
    from celery import shared_task, chain
    from shop.celery import app

    @shared_task(bind=True, max_retries=3, rate_limit="10/m", serializer="pickle")
    def send(self, order):
        try:
            deliver(order, self.request.id)
        except OSError as error:
            raise self.retry(exc=error, countdown=5)

    @app.task(name="report")
    def make_report():
        chain(send.s(1), send.si(2)).apply_async(countdown=3, routing_key="slow")
"""


class Site:
    """A code base below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(dedent(text))

    def scan(self, system: str, *words: object) -> CommandResult:
        result = jobqueue("migrate_from", system, self.folder, "--dry-run", *words)
        assert (result.code, result.err) == (0, "")
        return result

    def uses(self, system: str = "celery") -> dict[tuple[str, str], dict[str, Any]]:
        """Return the lines of the table by kind and name."""
        return {(use["kind"], use["name"]): use for use in self.scan(system, "--json").json["uses"]}

    def problems(self, system: str = "celery") -> list[str]:
        return list(self.scan(system, "--json").json["problems"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def shop(site: Site) -> Site:
    site.write("shop/celery.py", CELERY_APP)
    site.write("shop/tasks.py", TASKS)
    site.write("shop/views.py", "from . import tasks\n\ndef buy(request):\n    tasks.send.delay(1)\n")
    return site


class TestCelery:
    def test_table_says_what_becomes_of_each_use(self, shop: Site) -> None:
        out = shop.scan("celery").out
        for words in (
            "task shop.tasks.send 1 shop/tasks.py:6 works as it is @task",
            "option of a task max_retries 1 shop/tasks.py:5 works as it is max_attempts=, one more",
            "call .delay 1 shop/views.py:4 works as it is enqueue()",
        ):
            assert words in " ".join(out.split())
        assert (
            "shop/tasks.py:5: serializer (option of a task): Only JSON is stored; pass ids instead of objects.\n"
            "shop/tasks.py:14: routing_key (option of a call): Name a queue.\n" in out
        )
        assert "3 files of Celery read: 2 tasks, " in out
        assert "Estimate: 47 minutes with jobqueue.contrib.celery, " in out

    def test_tasks_have_the_names_that_celery_gives_them(self, shop: Site) -> None:
        names = {name for kind, name in shop.uses() if kind == "task"}
        assert names == {"shop.tasks.send", "report"}

    def test_a_bound_task_and_its_canvas_are_found(self, shop: Site) -> None:
        uses = shop.uses()
        for use in (
            ("call", ".retry"), ("call", ".request.id"), ("option of retry()", "countdown"), ("canvas", ".si"),
            ("canvas", "celery.chain"), ("call", ".apply_async"), ("app", "app.autodiscover_tasks"),
        ):  # fmt: skip
            assert uses[use]["effect"] == "same", use
        assert uses["option of a task", "rate_limit"]["effect"] == "differs"

    def test_relative_imports_and_reexports_lead_to_the_app(self, site: Site) -> None:
        site.write("shop/celery.py", CELERY_APP)
        site.write("shop/__init__.py", "from .celery import app as celery_app\n")
        site.write("shop/mail.py", "from shop import celery_app\n\n@celery_app.task\ndef mail(): ...\n")
        assert site.uses()["task", "shop.mail.mail"]["places"] == ["shop/mail.py:4"]

    def test_a_variable_hides_the_app_of_its_module(self, site: Site) -> None:
        site.write("shop/celery.py", CELERY_APP)
        site.write("shop/install.py", "from .celery import app\n\ndef install(app):\n    app.delete()\n")
        assert not any(name == "app.delete" for _, name in site.uses())

    def test_a_class_of_tasks_is_found_with_its_attributes(self, site: Site) -> None:
        site.write(
            "tasks.py",
            """
            import celery

            class Base(celery.Task):
                abstract = True

            class Send(Base):
                name = "send"
                exchange = "mails"

                def run(self):
                    self.update_state(state="HALF")
            """,
        )
        uses = site.uses()
        assert uses["task", "send"]["places"] == ["tasks.py:7"]
        assert uses["option of a task", "exchange"]["effect"] == "hand"
        assert ("call", ".update_state") in uses

    def test_settings_and_periodic_tasks_are_found(self, site: Site) -> None:
        site.write("shop/celery.py", f"{CELERY_APP}    app.conf.task_annotations = {{}}\n")
        site.write(
            "shop/settings.py",
            """
            from celery.schedules import crontab, solar

            CELERY_TASK_ALWAYS_EAGER = True
            CELERY_TASK_SERIALIZER = "json"
            CELERY_BEAT_SCHEDULE = {
                "night": {"task": "report", "schedule": crontab(hour=3), "options": {"queue": "slow"}},
                "often": {"task": "report", "schedule": 30.0},
            }
            CELERY_BEAT_SCHEDULE["dusk"] = {"task": "report", "schedule": solar("sunset", 52, 13)}
            """,
        )
        uses = site.uses()
        effects = {name: use["effect"] for (kind, name), use in uses.items() if kind in ("setting", "periodic task")}
        assert effects == {
            "CELERY_TASK_ANNOTATIONS": "hand",
            "CELERY_TASK_ALWAYS_EAGER": "same",
            "CELERY_TASK_SERIALIZER": "unneeded",
            "CELERY_BEAT_SCHEDULE": "same",
            "night": "same",
            "often": "same",
            "dusk": "hand",
        }
        assert uses["periodic task", "night"]["natively"] == "a schedule, Cron: crontab(hour=3) of 'report'"
        assert ("option of a call", "queue") in uses
        location = "calls the task 'report', which this code does not declare."
        assert f"shop/settings.py:7: {location}" in site.problems()

    def test_signals_and_unknown_names_are_to_be_changed_by_hand(self, site: Site) -> None:
        site.write(
            "hooks.py",
            """
            from celery.bootsteps import Blueprint
            from celery.signals import task_failure, worker_process_init

            @task_failure.connect
            def failed(**_): ...

            worker_process_init.connect(failed)
            Blueprint()
            """,
        )
        uses = site.uses()
        assert uses["signal", "celery.signals.task_failure"]["effect"] == "same"
        assert uses["signal", "celery.signals.worker_process_init.connect"]["effect"] == "hand"
        assert uses["other name", "celery.bootsteps.Blueprint"]["effect"] == "hand"

    def test_what_cannot_be_read_is_a_sentence_and_the_scan_goes_on(self, shop: Site) -> None:
        shop.write("shop/broken.py", "from celery import shared_task\n\ndef broken(:\n")
        (shop.folder / "shop" / "null.py").write_bytes(b"import celery\n\0")
        shop.write("shop/settings.py", "CELERY_BEAT_SCHEDULE = make()\n")
        shop.write(
            "shop/late.py",
            """
            from shop.celery import app
            from shop.tasks import send

            def call(name, options):
                app.send_task(name)
                app.send_task("gone")
                send.apply_async(**options)
            """,
        )
        assert [problem.partition(", so it is left out")[0] for problem in shop.problems()] == [
            f"shop/broken.py:3: is not valid Python {VERSION}",
            "shop/late.py:6: the name of the task of app.send_task is computed at runtime.",
            "shop/late.py:7: calls the task 'gone', which this code does not declare.",
            "shop/late.py:8: the options **options of .apply_async are computed at runtime, so they are not read.",
            f"shop/null.py:1: is not valid Python {VERSION}",
            "shop/settings.py:1: CELERY_BEAT_SCHEDULE is computed at runtime, so what it contains is not all read.",
        ]
        assert ("task", "shop.tasks.send") in shop.uses()

    def test_environments_and_hidden_folders_are_not_read(self, site: Site) -> None:
        for folder in ("node_modules", ".tox", "env/lib"):
            site.write(f"{folder}/tasks.py", TASKS)
        (site.folder / "env" / "pyvenv.cfg").touch()
        assert site.uses() == {}
        assert f"Nothing of Celery was found below {site.folder}." in site.scan("celery").out

    def test_a_missing_path_is_one_sentence(self) -> None:
        result = jobqueue("migrate_from", "celery", "no/such/folder")
        assert (result.code, result.err) == (1, "no/such/folder does not exist.")


@pytest.mark.parametrize(
    ("system", "code", "kind", "name", "becomes"),
    [
        ("django-q2", "from django_q.tasks import async_task\nasync_task('shop.mail.send', 1)\n",
         "task", "shop.mail.send", "@task on the function"),
        ("django-q2", "from django_q.tasks import async_task\nasync_task(f, hook=g)\n",
         "option of a call", "hook", "chain(), or task_finished of django.tasks"),
        ("django-q2", "Q_CLUSTER = {'workers': 4}\n", "setting", "Q_CLUSTER.workers", "run_executors --threads"),
        ("huey", "from huey.contrib.djhuey import db_task\n@db_task(retries=2)\ndef f(): ...\nf()\n",
         "call", "the call of a task", "task.enqueue(...)"),
        ("huey", "from huey import RedisHuey\nhuey = RedisHuey()\n@huey.task(retries=2)\ndef f(): ...\n",
         "option of a task", "retries", "max_attempts=, one more"),
        ("rq", "import django_rq\nfrom m import f\nqueue = django_rq.get_queue()\nqueue.enqueue_in(wait, f)\n",
         "task", "m.f", "@task on the function"),
        ("rq", "from django_rq import job\n@job('mail', result_ttl=1)\ndef f(): ...\n",
         "task", "tasks.f", "@task(queue_name=...)"),
        ("procrastinate", "from procrastinate.contrib.django import app\n@app.task(lock='a')\ndef f(): ...\n",
         "option of a task", "lock", "concurrency=Concurrency(1)"),
        ("procrastinate", "from shop import f\nf.configure(lock='x').defer(a=1)\n",
         "call", ".defer", "task.enqueue(...)"),
        ("django-tasks-db", "from django_tasks import task\nBACKEND = 'django_tasks_db.DatabaseBackend'\n",
         "setting", "django_tasks_db.DatabaseBackend", "jobqueue.backend.JobQueueBackend"),
        ("django-ox", "from django.tasks import task\n@task(max_attempts=3)\ndef f(): ...\n",
         "option of a task", "max_attempts", "max_attempts= of @task of jobqueue"),
    ],
)  # fmt: skip
def test_other_systems_are_read_with_their_own_tables(
    site: Site, system: str, code: str, kind: str, name: str, becomes: str
) -> None:
    (site.folder / "tasks.py").write_text(code)
    assert site.uses(system)[kind, name]["natively"] == becomes
    assert "WITH THE SHIM" not in site.scan(system).out


@pytest.mark.parametrize("name", system_names())
def test_tables_name_only_what_they_explain(name: str) -> None:
    system = system_named(name)
    explained = {pattern for rules in system.names.values() for pattern in rules}
    groups = [*system.names.values(), *(group["names"] for group in system.options), system.settings, system.strings]
    rules: list[Counterpart] = [rule for group in groups for rule in group.values()]
    assert {rule.effect for rule in rules} <= set(EFFECTS)
    assert all(rule.note.endswith(".") for rule in rules if rule.note)
    if not system.shim:
        assert all(rule.note for rule in rules if rule.effect == "hand")
    named = {option for group in system.options for option in group["of"]} - {"task class", "beat entry"}
    assert named | set(system.targets) <= explained
    assert all(system.rule_of(decorator) for decorator in system.declares)


def is_in_shim(name: str) -> bool:
    module, _, attribute = f"jobqueue.contrib.{name}".rpartition(".")
    try:
        return hasattr(import_module(module), attribute)
    except (ImportError, NotSupported):
        return False


def test_the_table_of_celery_agrees_with_the_shim() -> None:
    for rules in system_named("celery").names.values():
        for pattern, rule in rules.items():
            if pattern.startswith("celery.") and (rule.effect != "hand" or "*" not in pattern):
                if pattern in ("celery.task", "celery.schedules.solar"):  # another module; refuses when it is called
                    continue
                works = rule.effect in ("same", "differs")
                assert is_in_shim(pattern.rstrip("*.")) == works, pattern


def test_the_options_of_celery_that_are_refused_are_those_of_the_shim() -> None:
    by_hand = {name for group in system_named("celery").options for name, rule in group["names"].items()
               if rule.effect == "hand"}  # fmt: skip
    assert set(REFUSED) <= by_hand
