"""`--processes N`: a supervisor and its children."""

from __future__ import annotations

import os
import signal

import pytest

from jobqueue import api
from jobqueue.models import Executor, Heartbeat, Task
from jobqueue.values.states import Command
from tests.acceptance.harness import Fleet, Process, is_running, wait_for_end
from tests.acceptance.tasks import compute, kill_process, tiny, work
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LONG_SECONDS = 3600.0  # longer than any of these tests waits
TWO = ("--processes", "2", "--threads", "1")


def wait_for_children(supervisor: Process, *, but: int = 0) -> list[int]:
    """Wait until two children are in the database. Return their process ids."""

    def two_children() -> list[int]:
        pids = [pid for pid in supervisor.children() if pid != but]
        rows = Executor.objects.filter(pid__in=pids, heartbeat__state="RUNNING").values_list("pid", flat=True)
        return pids if set(rows) == set(pids) and len(pids) == 2 else []

    return wait_until(two_children, "two children")


def busy(fleet: Fleet, *flags: str, seconds: float = LONG_SECONDS) -> tuple[Process, list[int]]:
    """Start a supervisor with two children that run a task each."""
    supervisor = fleet.start(*TWO, *flags)
    children = wait_for_children(supervisor)  # else the first child would run both
    work.enqueue_many([((seconds,), {}) for _ in range(2)])
    wait_until(lambda: Effect.objects.count() == 2, "two running tasks")
    assert set(Effect.objects.values_list("pid", flat=True)) == set(children)
    return supervisor, children


def assert_both_released() -> None:
    rows = list(Task.objects.values_list("status", "attempts", "executor_losses", "executor_id"))
    assert rows == [("READY", 0, 0, None)] * 2


def test_children_have_their_own_names_and_ids(fleet: Fleet) -> None:
    supervisor = fleet.start(*TWO, "--name", "web")
    wait_for_children(supervisor)
    assert sorted(Executor.objects.values_list("name", flat=True)) == ["web.1", "web.2"]
    assert supervisor.stop() == 0
    assert set(Heartbeat.objects.values_list("state", flat=True)) == {"STOPPED"}


@pytest.mark.parametrize("to_all", [False, True], ids=["to the supervisor", "to the whole group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_running_tasks_end(fleet: Fleet, number: signal.Signals, to_all: bool) -> None:
    """A terminal or a service manager sends the children the same signal. It must not count as a second one."""
    supervisor, children = busy(fleet, seconds=3.0)
    (supervisor.send_to_group if to_all else supervisor.send)(number)
    assert supervisor.wait() == 0
    assert list(Task.objects.values_list("status", "claim_number")) == [("SUCCESSFUL", 1)] * 2
    assert not any(is_running(pid) for pid in children)


@pytest.mark.parametrize("to_all", [False, True], ids=["to the supervisor", "to the whole group"])
def test_second_interrupt_releases_tasks_at_once(fleet: Fleet, to_all: bool) -> None:
    supervisor, children = busy(fleet)
    send = supervisor.send_to_group if to_all else supervisor.send
    send(signal.SIGINT)
    wait_until(lambda: Executor.objects.filter(heartbeat__state="STOPPING").count() == 2, "the children to stop")
    supervisor.output.wait_for("Ctrl-C again to release them now")  # two pending signals of one kind would be merged
    send(signal.SIGINT)
    assert supervisor.wait() == 130
    assert_both_released()
    assert not any(is_running(pid) for pid in children)


def test_sigquit_releases_tasks_at_once(fleet: Fleet) -> None:
    supervisor, _ = busy(fleet)
    assert supervisor.stop(signal.SIGQUIT) == 131
    assert_both_released()


def test_pause_reaches_all_children_also_new_ones(fleet: Fleet) -> None:
    supervisor = fleet.start(*TWO)
    victim, _ = wait_for_children(supervisor)
    supervisor.send(signal.SIGTSTP)
    supervisor.output.wait_for(r"executor\.paused", count=2)
    tiny.enqueue()
    supervisor.send(signal.SIGUSR1)
    supervisor.output.wait_for("Thread MainThread", count=2)

    os.kill(victim, signal.SIGKILL)
    supervisor.output.wait_for(r"executor\.paused", count=3)

    assert Task.objects.ready().count() == 1
    supervisor.send(signal.SIGCONT)
    assert wait_for_end() == {"SUCCESSFUL": 1}
    assert supervisor.stop() == 0


@pytest.mark.smoke
def test_killed_child_is_replaced(fleet: Fleet) -> None:
    supervisor = fleet.start(*TWO)
    victim, survivor = wait_for_children(supervisor)
    os.kill(victim, signal.SIGKILL)
    assert survivor in wait_for_children(supervisor, but=victim)
    assert supervisor.output.find(rf"WARNING .*pid={victim} restart_in_s=0\.\d reason=signal 9")
    assert supervisor.stop() == 0


def test_child_that_got_sigterm_alone_is_replaced(fleet: Fleet) -> None:
    supervisor = fleet.start(*TWO)
    victim, _ = wait_for_children(supervisor)
    os.kill(victim, signal.SIGTERM)
    wait_for_children(supervisor, but=victim)
    assert not supervisor.output.find("WARNING|ERROR")
    assert supervisor.stop() == 0


def test_children_stopped_by_command_are_not_replaced(fleet: Fleet) -> None:
    supervisor = fleet.start(*TWO)
    victim, survivor = wait_for_children(supervisor)
    ids = {pid: Executor.objects.get(pid=pid, heartbeat__state="RUNNING").pk for pid in (victim, survivor)}

    api.command([ids[victim]], Command.STOP)
    supervisor.output.wait_for(rf"INFO .*process\.not_restarted .*pid={victim} reason=code 0")
    tiny.enqueue()
    assert wait_for_end() == {"SUCCESSFUL": 1}
    assert supervisor.children() == [survivor]

    api.command([ids[survivor]], Command.STOP)
    assert supervisor.wait() == 0
    assert not supervisor.output.find("WARNING|ERROR")


def test_children_of_a_killed_supervisor_end_by_themselves(fleet: Fleet) -> None:
    supervisor, children = busy(fleet, "--shutdown-timeout", "0.5s")
    supervisor.kill()
    wait_until(lambda: not any(is_running(pid) for pid in children), "the end of the children")
    assert_both_released()
    assert set(Heartbeat.objects.values_list("state", flat=True)) == {"STOPPED"}


def test_children_that_reach_max_tasks_are_replaced(fleet: Fleet) -> None:
    compute.enqueue_many([((0.01,), {}) for _ in range(20)])
    supervisor = fleet.start(*TWO, "--max-tasks", "4")
    assert wait_for_end() == {"SUCCESSFUL": 20}
    assert len(set(Task.objects.values_list("return_value", flat=True))) >= 5
    assert not supervisor.output.find("WARNING|ERROR")
    assert supervisor.stop() == 0


def test_burst_survives_a_child_that_dies(fleet: Fleet) -> None:
    kill_process.enqueue()
    compute.enqueue_many([((0.01,), {}) for _ in range(20)])
    supervisor = fleet.launch(*TWO, "--burst", heartbeat_timeout=1)
    assert supervisor.wait() == 0
    assert wait_for_end() == {"SUCCESSFUL": 20, "FAILED": 1}
