"""Tasks in modules that executors do not import: what `check` and enqueue() say, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
TASK = "from jobqueue import task\n\n\n@task\ndef {name}(a):\n    return a\n"
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "jobqueue", "shop", "late"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE / "db.sqlite3",
                         "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}
TASKS = {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}}
"""
FILES = {
    "shop/__init__.py": "",
    "shop/tasks/__init__.py": "from shop.tasks import of_package\n" + TASK.format(name="in_tasks"),
    "shop/tasks/of_package.py": TASK.format(name="of_package"),
    "shop/models.py": TASK.format(name="in_models"),
    "shop/urls.py": "from shop import views\nurlpatterns = []\n",
    "shop/views.py": "from shop import services, tasks\n",
    "shop/services.py": TASK.format(name="in_services"),
    "shop/scripts.py": TASK.format(name="in_scripts"),
    "late/__init__.py": "",
    "late/apps.py": (
        "from django.apps import AppConfig\n\n\nclass Late(AppConfig):\n    name = 'late'\n\n"
        "    def ready(self):\n        from late import jobs\n"
    ),
    "late/jobs.py": TASK.format(name="in_ready"),
}
SCRIPT = f"""
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
{TASK.format(name="in_script")}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return the folder of a site with tasks in several places."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "settings.py").write_text(f"from pathlib import Path\nBASE = Path({str(tmp_path)!r})\n{SETTINGS}")
    return tmp_path


def run(site: Path, script: str) -> str:
    """Run a script with the site. Return its output."""
    (site / "script.py").write_text(SCRIPT + script)
    command = [sys.executable, str(site / "script.py")]
    environment = {"PYTHONPATH": f"{site}:{CHECKOUT}", "PATH": ""}
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_check_names_tasks_that_the_setup_does_not_import(site: Path) -> None:
    output = run(site, "from jobqueue.declarations.checks import run_checks\nfor one in run_checks(): print(one)\n")

    assert "Move it to tasks.py, actors.py or workflows.py of an installed app" in output
    assert "(jobqueue.W008) The task 'shop.services.in_services' is declared in shop/services.py:4, which" in output
    assert not [name for name in ("in_tasks", "of_package", "in_models", "in_ready", "in_scripts") if name in output]


def test_enqueue_warns_once_of_a_task_that_the_setup_does_not_import(site: Path) -> None:
    output = run(
        site,
        "from shop import models, services, tasks\nfrom late import jobs\n"
        "for one in (tasks.in_tasks, tasks.of_package.of_package, models.in_models, jobs.in_ready):\n"
        "    one.using(priority=1).enqueue(1)\n"
        "for _ in range(3): services.in_services.using(priority=1).enqueue(1)\n",
    )

    (line,) = output.splitlines()
    assert line.startswith("task.misplaced task=shop.services.in_services location=shop/services.py:4 hint=Executors ")
    assert "tasks.py, actors.py or workflows.py of an installed app" in line


def test_enqueue_refuses_an_unnamed_task_of_a_script(site: Path) -> None:
    output = run(
        site,
        "from jobqueue.conf.compat import InvalidTask\n"
        "for _ in range(2):\n    try: in_script.enqueue(1)\n    except InvalidTask as error: print(error)\n"
        "named = task(name='shop.named')(in_script.func)\nnamed.enqueue(1)\n"
        "from jobqueue.models import Task\nprint(Task.objects.values_list('task_type', flat=True))\n",
    )

    assert output.count("in_script: it is declared in script.py:11, which this process runs as __main__.") == 2
    assert output.count("such as tasks.py, actors.py or workflows.py of an installed app") == 2
    assert "task.misplaced task=shop.named location=script.py:11" in output
    assert "<TaskQuerySet ['shop.named']>" in output
