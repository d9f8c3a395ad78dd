"""While a release rolls out: the database is migrated, and executors of the code before still run beside new ones."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Count

from jobqueue.models import Executor, Task
from tests.acceptance.harness import CHECKOUT, Fleet, fleet_of, wait_for_end, wait_until
from tests.acceptance.tasks import book, tiny, work, work_later
from tests.actors import Fibonacci
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["jobqueue", "tests"])
MIGRATIONS = "jobqueue/migrations/0*.py"


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, check=True).stdout


def revision_of(which: str) -> str:
    """Find a commit. Raises CalledProcessError, OSError where there is no history."""
    if which == "previous commit":
        return git("rev-parse", "--verify", "HEAD~1").decode().strip()
    newest = git("log", "-1", "--format=%H", "--diff-filter=A", "--no-renames", "--", MIGRATIONS).decode().strip()
    return git("rev-parse", "--verify", f"{newest}~1").decode().strip()


@pytest.fixture(scope="module", params=["previous commit", "previous schema"])
def previous(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of an older commit, in a folder of its own."""
    try:
        content = git(
            "archive", "--format=zip", revision_of(request.param), "jobqueue", "tests", "demo_project", "manage.py"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no git history with a {request.param}: {error}")
    folder = tmp_path_factory.mktemp("previous")
    with ZipFile(BytesIO(content)) as archive:  # extracting a tar safely needs Python 3.11.4
        archive.extractall(folder)
    return folder


@pytest.fixture
def fleet(transactional_db: None, process_environment: dict[str, str]) -> Any:
    with fleet_of(process_environment) as fleet:
        yield fleet


def enqueue_some() -> list[Any]:
    """Enqueue, with the code of today, tasks of every kind."""
    functions = [task.enqueue() for task in (tiny, book, work, work_later) for _ in range(10)]
    late = tiny.using(priority=5, key="late", max_attempts=2, metadata={"by": "today"}).enqueue(1)
    return [*functions, late, Fibonacci.enqueue(5)]


def effects_beyond_one() -> int:
    return Effect.objects.filter(kind="booked").values("task_id").annotate(n=Count("pk")).filter(n__gt=1).count()


def test_code_before_is_what_runs(previous: Path, fleet: Fleet) -> None:
    code = "import jobqueue; print(jobqueue.__file__)"
    environment = fleet.environment(PYTHONPATH=str(previous))
    said = subprocess.run([sys.executable, "-c", code], cwd=previous, env=environment, capture_output=True, check=True)
    assert Path(said.stdout.decode().strip()).is_relative_to(previous)


def test_executor_of_the_code_before_runs_what_new_code_enqueues(previous: Path, fleet: Fleet) -> None:
    results = enqueue_some()
    process = fleet.start(checkout=previous)

    assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}

    for result in results:
        result.refresh()
        assert result.status == "SUCCESSFUL"
    assert results[-1].return_value == 5
    assert Effect.objects.filter(kind="booked").count() == 10
    assert process.stop() == 0
    assert not process.output.find("Traceback|ERROR|CRITICAL")


@pytest.mark.parametrize("lost", ["before", "new"])
def test_either_code_takes_over_from_the_other(previous: Path, fleet: Fleet, lost: str) -> None:
    timeout: dict[str, Any] = {"heartbeat_timeout": 1.5}
    first = fleet.start(checkout=previous, **timeout) if lost == "before" else fleet.start(**timeout)
    book.enqueue_many([((3.0,), {})] * 4)
    work.enqueue_many([((3.0,), {})] * 4)
    wait_until(lambda: Task.objects.running().count() == 8, "eight tasks that run")

    first.send(signal.SIGKILL)  # before the other starts, which may take longer than they do
    second = fleet.start(**timeout) if lost == "before" else fleet.start(checkout=previous, **timeout)

    assert wait_for_end() == {"SUCCESSFUL": 8}
    assert set(Task.objects.values_list("executor_losses", flat=True)) == {1}
    assert effects_beyond_one() == 0
    assert second.stop() == 0


def test_both_share_the_work_and_each_task_commits_once(previous: Path, fleet: Fleet) -> None:
    processes = [fleet.start(checkout=previous), fleet.start()]
    book.enqueue_many([((0.2,), {})] * 100)
    parents = [Fibonacci.enqueue(6) for _ in range(3)]

    assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}

    for parent in parents:
        parent.refresh()
        assert parent.return_value == 8
    assert Effect.objects.filter(kind="booked").count() == 100
    assert effects_beyond_one() == 0
    assert Executor.objects.count() == 2
    assert len(set(Effect.objects.values_list("pid", flat=True))) == 2
    assert {process.stop() for process in processes} == {0}


@pytest.mark.parametrize(
    ("older", "what"),
    [
        (
            "0007",
            "The tables jobqueue_spareheartbeat, jobqueue_counter, jobqueue_counterdelta are missing in the database",
        ),
        (
            "0013",
            "The migration 0014_task_idempotency_digest is not applied to the database 'default': run `manage.py",
        ),
    ],
)
def test_executor_waits_for_the_migrations_of_its_code_and_claims_nothing(fleet: Fleet, older: str, what: str) -> None:
    """Where code arrives first. A claim may work on older tables, and its commit not: bodies would run for ever."""
    work.enqueue_many([((0.0,), {})] * 20)
    book.enqueue_many([((0.0,), {})] * 20)
    call_command("migrate", "jobqueue", older, verbosity=0)
    connection.close()
    try:
        process = fleet.launch("--connect-timeout", "60")
        said = process.output.wait_for("ERROR").string
        hasty = fleet.launch("--connect-timeout", "0.5")
        assert hasty.wait() == 69
    finally:
        call_command("migrate", "jobqueue", verbosity=0)
    assert re.search(what, said)
    assert not Effect.objects.exists()
    assert set(Task.objects.values_list("status", "claim_number")) == {("READY", 0)}

    process.wait_until_ready()

    assert wait_for_end() == {"SUCCESSFUL": 40}
    assert set(Task.objects.values_list("claim_number", flat=True)) == {1}
    assert process.stop() == 0
    # Once for each state of the tables that it met: `migrate` may take longer than a look.
    told = [found.string[len("12:34:56 ") :] for found in process.output.find("ERROR|WARNING")]
    assert len(set(told)) == len(told)
    assert all("run `manage.py migrate" in line for line in told)
