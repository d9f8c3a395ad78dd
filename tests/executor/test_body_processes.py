"""`@task(process=True)`: the body runs in a child process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobqueue import api, task
from jobqueue.conf.compat import InvalidTask
from jobqueue.executor.pools.processes import BodyProcesses
from jobqueue.models import Task, TaskLog, TaskProgress
from jobqueue.values.reports import parse_lines
from jobqueue.values.states import Status
from tests.executor import process_tasks as tasks
from tests.executor.harness import Start, on_postgresql, row_of, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql


class SharedProcesses(BodyProcesses):
    """Processes for all tests of this module, because each takes a second to start."""

    def close(self) -> None:
        """Kill those that an executor leaves at work."""
        for process in [*self._all]:
            if process.is_busy:
                process.kill()


@pytest.fixture(scope="module")
def processes(process_environment: dict[str, str]) -> Iterator[BodyProcesses]:
    with pytest.MonkeyPatch.context() as environment:
        for name in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "SQLITE_PATH"):
            environment.setenv(name, process_environment[name])
        shared = SharedProcesses("default", 1.0)
        yield shared
        BodyProcesses.close(shared)


@pytest.fixture(autouse=True)
def shared(processes: BodyProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.executor.process.BodyProcesses", lambda *_: processes)


def ended(result: Any, status: Status = Status.SUCCESSFUL) -> Task:
    return wait_for_status(result, status)


def value_of(result: Any) -> Any:
    return ended(result).return_value


def error_of(result: Any) -> dict[str, Any]:
    error: dict[str, Any] = ended(result, Status.FAILED).errors[-1]
    return error


def test_body_runs_in_a_child_that_the_next_body_uses_again(start: Start) -> None:
    start(threads=1)
    results = tasks.show_process.enqueue_many([((["ä", {"n": 1}],), {}), ((None,), {})])

    first, second = (value_of(result) for result in results)

    assert first["pid"] == second["pid"] != os.getpid() == first["parent"]
    assert first["value"] == ["ä", {"n": 1}]


def test_context_progress_and_log_lines_are_those_of_any_body(start: Start) -> None:
    start(threads=1)
    result = tasks.report.enqueue()

    assert ended(result).return_value == [str(result.id), 1, f"{result.id}:0"]
    progress = wait_until(lambda: TaskProgress.objects.filter(pk=result.id).first(), "the progress")
    assert (progress.done, progress.total, progress.note) == (3.0, 5.0, "three of five")
    lines = wait_until(lambda: TaskLog.objects.filter(task_id=result.id).first(), "the lines").lines
    assert [line.message for line in parse_lines(lines)] == ["half done"]


def test_next_attempt_begins_with_the_checkpoint(start: Start) -> None:
    start(threads=1)

    assert value_of(tasks.keep_place.enqueue()) == {"place": 5}


def test_body_has_connections_of_its_own(start: Start) -> None:
    start(threads=1)
    counted = tasks.count_tasks.enqueue()
    assert ended(counted).return_value == 1

    left = tasks.leave_transaction.using(max_attempts=1).enqueue()
    assert error_of(left)["message"].startswith("The task left a transaction open")
    assert ended(tasks.count_tasks.enqueue()).return_value == 3


def test_error_comes_back_with_its_class_and_traceback(start: Start) -> None:
    start(threads=1)
    error = error_of(tasks.fail.enqueue())

    assert error["exception_class_path"] == "tests.executor.process_tasks.Unpicklable"
    assert error["message"] == "5: boom"
    assert 'raise Unpicklable(5, "boom")' in error["traceback"]


def test_error_of_the_system_is_not_taken_for_the_end_of_the_process(start: Start) -> None:
    start(threads=1)
    before = value_of(tasks.show_process.enqueue(1))["pid"]

    assert error_of(tasks.read_missing_file.enqueue())["exception_class_path"] == "builtins.FileNotFoundError"
    assert value_of(tasks.show_process.enqueue(1))["pid"] == before


def test_body_without_a_connection_uses_no_attempt(start: Start) -> None:
    start(threads=1)
    result = tasks.connect_to_wrong_port.enqueue()

    assert (value_of(result), row_of(result).attempts) == (1, 0)


@pytest.mark.parametrize(("kind", "attempts"), [("retry", 2), ("give up", 1)])
def test_answer_to_an_error_is_followed_and_shows_the_error(start: Start, kind: str, attempts: int) -> None:
    start(threads=1)
    result = tasks.answer.enqueue(kind)

    assert "the reason" in error_of(result)["message"]
    assert row_of(result).attempts == attempts


def test_crash_of_a_body_fails_its_attempt_and_no_other(start: Start) -> None:
    start(threads=2)
    neighbour = tasks.wait_for_stop.enqueue()
    wait_until(lambda: TaskProgress.objects.filter(pk=neighbour.id).exists(), "the neighbour")
    crashes = [tasks.crash.enqueue(how) for how in ("exit", "segfault", "kill")]

    messages = [error_of(result)["message"] for result in crashes]

    assert messages[0] == "The process of the body has ended with exit code 7."
    assert "ended by signal 11 (SIGSEGV)" in messages[1]
    assert "ended by signal 9 (SIGKILL, perhaps because memory ran out)" in messages[2]
    assert row_of(neighbour).status == Status.RUNNING


def test_crash_is_seen_although_a_program_of_the_body_lives_on(start: Start, tmp_path: Path) -> None:
    start(threads=1)
    file = tmp_path / "pid"
    result = tasks.crash_after_fork.enqueue(str(file))
    wait_until(lambda: file.exists() and file.read_text(), "the program")
    try:
        assert error_of(result)["message"] == "The process of the body has ended with exit code 7."
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


def test_body_that_keeps_the_gil_is_killed_after_its_timeout(start: Start) -> None:
    running = start(threads=1)
    ended(tasks.show_process.enqueue(1))  # the next body does not wait for a process

    error = error_of(tasks.keep_gil.enqueue())

    assert error["exception_class_path"] == "jobqueue.exceptions.TaskTimeout"
    assert error["message"] == "The body did not stop within 1 s. Its process was killed."
    assert ended(tasks.show_process.enqueue(1))
    assert running.loop.failure is None


def test_body_that_uses_too_much_memory_is_killed(start: Start) -> None:
    start(threads=1)

    assert "more than max_memory=150." in error_of(tasks.grow.enqueue())["message"]


def test_memory_that_other_bodies_have_left_does_not_count(start: Start) -> None:
    start(threads=1)
    full = value_of(tasks.leak.enqueue())

    assert value_of(tasks.show_limited_process.enqueue()) != full


def test_close_leaves_the_socket_to_the_thread_that_uses_it(process_environment: dict[str, str]) -> None:
    """Two threads that close one descriptor may close the file of a third."""
    processes = BodyProcesses("default", 1.0)
    process = processes._take(None)

    processes.close()

    assert not process.is_alive
    assert not process._connection.closed
    processes._give_back(process)
    assert process._connection.closed


def test_cancel_interrupts_a_body_in_its_process(start: Start) -> None:
    start(threads=1)
    before = value_of(tasks.show_process.enqueue(1))["pid"]
    result = tasks.sleep.enqueue()
    wait_until(lambda: TaskProgress.objects.filter(pk=result.id).exists(), "the body")
    api.cancel(result.id)

    ended(result, Status.CANCELLED)
    assert value_of(tasks.show_process.enqueue(1))["pid"] == before  # it runs the next body, too


def test_body_learns_of_a_stop_and_is_released(start: Start) -> None:
    running = start(threads=1)
    result = tasks.wait_for_stop.enqueue()
    wait_until(lambda: TaskProgress.objects.filter(pk=result.id).exists(), "the body")

    running.stop()

    assert (row_of(result).status, row_of(result).attempts) == (Status.READY, 0)


def test_body_that_ignores_a_stop_is_killed_and_released(start: Start) -> None:
    running = start(threads=1, shutdown_timeout=0.1)
    result = tasks.keep_gil.using(timeout=3600).enqueue()
    ended(result, Status.RUNNING)

    running.stop()

    assert row_of(result).status == Status.READY


def test_declarations_that_cannot_work_are_refused() -> None:
    cases: list[tuple[Any, str]] = [
        ({"process": True, "atomic": True}, "process=True needs a plain function"),
        ({"max_memory": 5}, "max_memory needs process=True"),
        ({"process": True, "max_memory": 0}, "max_memory must be a whole number"),
    ]
    for options, problem in cases:
        with pytest.raises(InvalidTask, match=problem):
            task(**options)(tasks.fail.func)
