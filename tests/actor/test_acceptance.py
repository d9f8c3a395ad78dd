"""Actors in executor processes, some of which the tests kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobqueue.models import Executor, InboxMessage, Task
from jobqueue.values.states import Status
from tests.actor.programs import FlakyFibonacci
from tests.actors import Fibonacci
from tests.fixtures import Options
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]), pytest.mark.slow]

CHECKOUT = Path(__file__).parents[2]

Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(
    process_environment: dict[str, str], options: Options, tmp_path: Path, transactional_db: None
) -> Iterator[Launch]:
    """Start executor processes. The end of the test kills them."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(*flags: str, **backend_options: Any) -> subprocess.Popen[bytes]:
        environment = process_environment | {
            "DJANGO_SETTINGS_MODULE": "tests.actor.process_settings",
            "ACTOR_OPTIONS": json.dumps(backend_options),
        }
        with open(tmp_path / f"executor-{len(started)}.log", "wb") as log:
            command = [sys.executable, str(CHECKOUT / "manage.py"), "run_executors", *flags]
            process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.wait()


def finished(database: str = "default") -> int:
    return Task.objects.using(database).finished().count()


def wait_for_end(pk: str, database: str = "default") -> Task:
    def finished_row() -> Task | None:
        row = Task.objects.using(database).get(pk=pk)
        return row if row.is_finished else None

    return wait_until(finished_row, "the end of the program", DEADLINE_SECONDS)


def test_tree_of_failing_actors_survives_loss_of_executors(launch: Launch) -> None:
    options = {"HEARTBEAT_TIMEOUT": 1.5}
    first = launch("--threads", "4", **options)
    launch("--threads", "4", **options)
    wait_until(lambda: Executor.objects.count() == 2, "both executors", DEADLINE_SECONDS)
    result = FlakyFibonacci.enqueue(15, seed=7)
    for goal in (60, 300):
        wait_until(lambda goal=goal: finished() >= goal, f"{goal} finished tasks", DEADLINE_SECONDS)  # type: ignore[misc]
        first.kill()
        first.wait()
        assert finished() < 1219, "killed too late"
        first = launch("--threads", "4", **options)
    row = wait_for_end(result.id)

    assert (row.status, row.return_value) == (Status.SUCCESSFUL, 610), row.errors
    tasks = Task.objects.all()
    assert tasks.count() == tasks.successful().count() == 1219  # no child was spawned twice or lost
    assert InboxMessage.objects.count() == 0
    failures = [error for errors in tasks.values_list("errors", flat=True) for error in errors]
    assert {error["message"] for error in failures if "ExecutorLost" not in error["exception_class_path"]} == {
        "bad luck"
    }
    assert len(failures) > 200


def test_tree_of_actors_succeeds_on_sqlite(launch: Launch, options: Options) -> None:
    options(DATABASE="sqlite")
    result = Fibonacci.enqueue(10)
    assert launch("--burst", DATABASE="sqlite").wait(DEADLINE_SECONDS) == 0
    result.refresh()

    assert result.return_value == 55
    assert Task.objects.using("sqlite").successful().count() == 109


def test_stopped_executor_leaves_its_actors_to_the_other(launch: Launch) -> None:
    first, _ = launch("--threads", "2"), launch("--threads", "2")
    wait_until(lambda: Executor.objects.count() == 2, "both executors", DEADLINE_SECONDS)
    result = FlakyFibonacci.enqueue(11, seed=3)
    wait_until(lambda: finished() >= 20, "20 finished tasks", DEADLINE_SECONDS)
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE_SECONDS) == 0

    assert wait_for_end(result.id).return_value == 89
    assert not Task.objects.filter(executor_losses__gt=0).exists()
