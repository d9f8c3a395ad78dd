"""Signals: no task is lost, no attempt is counted, and the exit code shows the reason."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jobqueue.models import Heartbeat, Task
from tests.acceptance.harness import Fleet, Process, ended, session_of, wait_for_end, wait_for_ended
from tests.acceptance.tasks import hang, leave_a_thread, register_slow_exit, tiny, work, work_later
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NOT_SOON = 3600.0  # longer than any of these tests waits


def started() -> int:
    return Effect.objects.filter(kind="started").count()


def busy(fleet: Fleet, *flags: str, seconds: float = NOT_SOON, **options: float) -> Process:
    """An executor in the middle of two tasks, with a third in its queue."""
    for body in (work, work_later):
        body.enqueue(seconds)
    process = fleet.start("--threads", "1", *flags, **options)
    wait_until(lambda: started() == 2, "two running tasks")
    work.enqueue(seconds)
    return process


def assert_handed_back(count: int = 3) -> None:
    rows = list(Task.objects.values_list("status", "attempts", "executor_losses", "executor_id"))
    assert rows == [("READY", 0, 0, None)] * count


@pytest.mark.smoke
def test_sigterm_lets_running_tasks_end_and_releases_others(fleet: Fleet) -> None:
    process = busy(fleet, seconds=3.0)
    assert process.stop() == 0
    states = sorted(Task.objects.values_list("status", "attempts"))
    assert states == [("READY", 0), ("SUCCESSFUL", 0), ("SUCCESSFUL", 0)]
    assert process.output.find(r"executor\.stopped .* finished=2 lost=0")
    assert Heartbeat.objects.get().state == "STOPPED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_longer_task_is_released_after_the_shutdown_timeout(fleet: Fleet, number: signal.Signals) -> None:
    process = busy(fleet, "--shutdown-timeout", "0.3s")
    assert process.stop(number) == 0
    assert_handed_back()
    assert process.output.find(r"WARNING .*executor.tasks_interrupted tasks=2")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGTERM, 0),
        (None, signal.SIGQUIT, 131),
    ],
)
def test_second_signal_releases_tasks_at_once(
    fleet: Fleet, first: signal.Signals | None, second: signal.Signals, code: int
) -> None:
    process = busy(fleet)
    if first is not None:
        process.send(first)
        wait_until(lambda: process.row.heartbeat.state == "STOPPING", "the executor to stop")
    assert process.stop(second) == code
    assert_handed_back()


def test_task_that_ignores_interruptions_is_released(fleet: Fleet) -> None:
    hang.enqueue(NOT_SOON)
    process = fleet.start("--shutdown-timeout", "0s")
    wait_until(started, "a running task")
    assert process.stop() == 0
    assert_handed_back(1)


def test_sigterm_under_load_leaves_no_running_task(fleet: Fleet) -> None:
    for _ in range(4):
        tiny.enqueue_many([((number,), {}) for number in range(3000)])  # more than a fast executor can finish in time
        process = fleet.launch()
        done = ended()
        wait_for_ended(done + 1)
        assert process.stop() == 0
        assert not Task.objects.running().exists()
        assert not Task.objects.exclude(attempts=0, executor_losses=0, errors=[]).exists()
    fleet.start("--burst").wait()
    assert wait_for_end() == {"SUCCESSFUL": 12_000}


@pytest.mark.parametrize("flags", [(), ("--processes", "3")], ids=["one process", "three processes"])
@pytest.mark.parametrize("line", ["^jobqueue ", "^shutdown ", "^ready"])
def test_sigterm_during_start_stops_executor(fleet: Fleet, line: str, flags: tuple[str, ...]) -> None:
    tiny.enqueue_many([((number,), {}) for number in range(20)])
    process = fleet.launch(*flags)
    process.output.wait_for(line)
    assert process.stop() == 0
    assert not process.output.find("Traceback")
    assert session_of(process.pid) == []
    assert not Task.objects.running().exists()


def test_sigterm_without_a_database_stops_executor(fleet: Fleet) -> None:
    process = fleet.launch(environment={"DATABASE_URL": "postgresql://postgres@/jobqueue?host=/nonexistent"})
    process.output.wait_for(r"database\.unreachable")
    assert process.stop() == 0
    assert not process.output.find("^ready|Traceback")


def test_sigusr1_prints_threads_and_running_tasks(fleet: Fleet) -> None:
    process = busy(fleet)
    process.send(signal.SIGUSR1)
    process.output.wait_for(r"Thread watchdog")
    process.output.wait_for(r"tasks\.py.* in pause")
    for body in (work, work_later):
        process.output.wait_for(rf"{body.module_path} default \d+\.\d s")
    assert process.stop(signal.SIGQUIT) == 131


def test_ignored_hangup_stays_ignored(fleet: Fleet) -> None:
    """As under nohup."""
    process = fleet.start(ignoring=signal.SIGHUP)
    process.send(signal.SIGHUP)
    tiny.enqueue()
    assert wait_for_end() == {"SUCCESSFUL": 1}
    assert process.row.heartbeat.state == "RUNNING"
    assert process.stop() == 0


@pytest.mark.parametrize("kind", ["thread", "pool"])
@pytest.mark.parametrize("flags", [(), ("--burst",), ("--processes", "2")], ids=lambda flags: " ".join(flags))
def test_thread_left_by_a_task_does_not_delay_the_end(fleet: Fleet, flags: tuple[str, ...], kind: str) -> None:
    leave_a_thread.enqueue(kind)
    process = fleet.start(*flags)
    wait_for_ended(1)

    assert (process.wait() if "--burst" in flags else process.stop()) == 0

    if "--processes" not in flags:  # a child process does not wait for threads
        process.output.wait_for(r"executor\.threads_abandoned threads=.*left-behind")


def test_stop_lets_functions_of_atexit_finish(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "finished"
    register_slow_exit.enqueue(str(path))
    process = fleet.start(checks=True)  # a forked process would run none
    wait_for_ended(1)

    assert process.stop() == 0
    assert path.exists()
