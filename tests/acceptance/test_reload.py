"""`--reload`: new code, Ctrl-C in a terminal, and a module with a syntax error."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from jobqueue.models import Heartbeat, Task
from tests.acceptance.harness import Fleet, Process, is_running
from tests.acceptance.tasks import work
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LONG_SECONDS = 300.0


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A module of the site that the test edits."""
    path = tmp_path / "edited_module.py"
    path.write_text("VALUE = 1\n")
    return path


def start(fleet: Fleet, watched: Path) -> tuple[Process, int]:
    """Start an executor under --reload that runs a task. Return it and its child."""
    path = f"{watched.parent}:{fleet.environment()['PYTHONPATH']}"
    process = fleet.start("--reload", environment={"PYTHONPATH": path, "TESTS_IMPORT": watched.stem})
    work.enqueue(LONG_SECONDS)
    wait_until(Effect.objects.exists, "a running task")
    (child,) = process.children()
    assert child == Effect.objects.get().pid
    return process, child


def touch(path: Path, text: str) -> None:
    path.write_text(text)
    moment = time.time() + 5  # later than every check so far, even with a coarse file system clock
    os.utime(path, (moment, moment))


def test_changed_code_releases_tasks_and_starts_again(fleet: Fleet, watched: Path) -> None:
    process, child = start(fleet, watched)
    touch(watched, "VALUE = 2\n")
    wait_until(lambda: Effect.objects.count() == 2, "the second start")
    assert not is_running(child)
    row = Task.objects.get()
    assert (row.status, row.claim_number, row.attempts, row.executor_losses) == ("RUNNING", 2, 0, 0)
    assert process.stop(signal.SIGQUIT) == 131


@pytest.mark.parametrize("to_all", [False, True], ids=["to the parent", "to the whole group"])
def test_second_interrupt_under_reload_releases_tasks(fleet: Fleet, watched: Path, to_all: bool) -> None:
    process, child = start(fleet, watched)
    send = process.send_to_group if to_all else process.send
    send(signal.SIGINT)
    wait_until(lambda: Heartbeat.objects.get().state == "STOPPING", "the executor to stop")
    process.output.wait_for(r"executor\.stop_requested")  # a second signal before that would be one with the first
    send(signal.SIGINT)
    assert process.wait() == 130
    assert not is_running(child)
    assert Task.objects.values_list("status", "attempts").get() == ("READY", 0)


def test_reload_retries_broken_code_until_it_works(fleet: Fleet, watched: Path) -> None:
    process, _ = start(fleet, watched)
    touch(watched, "VALUE = \n")
    process.output.wait_for("SyntaxError")
    process.output.wait_for(r"process\.ended .* restart_in_s=.* reason=code 1", count=2)
    assert Task.objects.get().status == "READY"
    watched.write_text("VALUE = 3\n")
    wait_until(lambda: Effect.objects.count() == 2, "the second start")
    assert process.stop(signal.SIGQUIT) == 131
