#!/usr/bin/env python3
"""Build the wheel, install it beside a bare site, run one task through it and look at the admin."""

import os
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PINS = CHECKOUT / ".ci/constraints.txt"
sys.path.insert(0, str(CHECKOUT))

from tools.postgres import Cluster, throwaway_cluster  # noqa: E402

REQUIRED = [
    "jobqueue/py.typed",
    "jobqueue/engine/postgres/sql/*.sql",
    "jobqueue/management/migrate_from/systems/*.toml",
    "jobqueue/migrations/0001_*.py",
    "jobqueue/templates/admin/jobqueue/*.html",
    "jobqueue/static/jobqueue/*",
    "jobqueue/locale/de/LC_MESSAGES/django.mo",
    "jobqueue/locale/fr/LC_MESSAGES/django.mo",
]
SETTINGS = """
INSTALLED_APPS += ["jobqueue", "shop"]
TASKS = {{"default": {{"BACKEND": "jobqueue.backend.JobQueueBackend"}}}}
DATABASES = {{"default": {database!r}}}
STATIC_ROOT = BASE_DIR / "collected"
"""
TASKS = """
from jobqueue import task

@task
def add(a: int, b: int) -> int:
    return a + b
"""
ENQUEUE = "from shop.tasks import add; print('enqueued', add.enqueue(2, 3).id)"
INSPECT = """
from django.contrib.auth.models import User
from django.test import Client
from jobqueue.models import Task

row = Task.objects.get()
assert (row.status, row.return_value) == ("SUCCESSFUL", 5), (row.status, row.return_value, row.errors)
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("admin"))
for page in ("", f"{row.pk}/change/"):
    response = client.get(f"/admin/jobqueue/task/{page}")
    assert response.status_code == 200, (page, response.status_code)
print("task", row.pk, "is", row.status)
"""


def main() -> None:
    # Short, for the interpreter's path stands in the first line of scripts.
    with tempfile.TemporaryDirectory(prefix="jobqueue-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        check_contents(wheel)
        python = install(wheel, folder / "environment")
        with throwaway_cluster(fsync="off") as cluster:
            use(python, make_site(python, folder / "site", cluster))
    print(f"{wheel.name}: complete, and it ran a task")


def build(folder: Path) -> Path:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "-w",
        folder,
        CHECKOUT,
        PIP_CONSTRAINT=PINS.as_uri(),  # pip splits a path at its spaces
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = (path for path in (CHECKOUT / "jobqueue").rglob("*") if path.is_file())
    beside = {path.relative_to(CHECKOUT).as_posix() for path in package if "__pycache__" not in path.parts}
    missing = sorted(beside - inside)
    missing += [pattern for pattern in REQUIRED if not any(fnmatch(member, pattern) for member in inside)]
    strangers = sorted(member for member in inside if not member.startswith(("jobqueue/", "django_jobqueue-")))
    if missing or strangers:
        sys.exit(f"The wheel lacks {missing} and should not have {strangers}")


def install(wheel: Path, environment: Path) -> Path:
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin/python"
    run(python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", PINS, wheel)
    return python


def make_site(python: Path, site: Path, cluster: Cluster) -> Path:
    site.mkdir()
    run(python, "-m", "django", "startproject", "bare", site)
    run(python, "manage.py", "startapp", "shop", cwd=site)
    (site / "shop/tasks.py").write_text(TASKS)
    with (site / "bare/settings.py").open("a") as settings:
        settings.write(SETTINGS.format(database=cluster.database()))
    return site


def use(python: Path, site: Path) -> None:
    for command in (
        ["check", "--fail-level", "WARNING"],
        ["makemigrations", "--check", "--dry-run", "jobqueue"],
        ["migrate", "-v", "0"],
        ["collectstatic", "--no-input", "-v", "0"],
        ["shell", "-c", ENQUEUE],
        ["run_executors", "--burst"],
        ["shell", "-c", INSPECT],
    ):
        run(python, "manage.py", *command, cwd=site)
    if not list((site / "collected/jobqueue").iterdir()):
        sys.exit("collectstatic found nothing of jobqueue's")


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "PYTHON"))}
    # From outside of the checkout, or `import jobqueue` would find the source beside the wheel.
    subprocess.run(command, cwd=cwd or "/", env=inherited | variables, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
