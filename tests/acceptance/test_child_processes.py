"""What bodies have started ends with their executor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from jobqueue.executor.child_processes import descendants
from tests.acceptance.harness import Fleet, Process, is_running
from tests.acceptance.tasks import start_children
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

AT_ONCE = ("--shutdown-timeout", "0s", "--threads", "2")


def stop(process: Process) -> None:
    assert process.stop() == 0


def kill_child(process: Process) -> None:
    """Kill the child of the supervisor in which the body runs."""
    os.kill(Effect.objects.values_list("pid", flat=True)[0], signal.SIGKILL)


def wait_for_replacement(process: Process) -> None:
    """The body does not react to its timeout, so its process is replaced."""
    process.output.wait_for("executor.stuck")


@pytest.mark.parametrize("kind", ["fork", "subprocess"])
@pytest.mark.parametrize(
    ("flags", "end"),
    [((), stop), (("-p", "2"), stop), (("-p", "2"), kill_child), ((), wait_for_replacement)],
    ids=["stop", "stop of two", "kill", "timeout"],
)
def test_children_of_a_body_end_with_its_executor(
    fleet: Fleet, kind: str, flags: tuple[str, ...], end: Callable[[Process], None]
) -> None:
    body = start_children.using(timeout=0.5) if end is wait_for_replacement else start_children
    body.enqueue(kind)
    process = fleet.start(*AT_ONCE, *flags, heartbeat_timeout=60)
    started = Effect.objects.filter(kind__startswith="child ")
    wait_until(lambda: started.count() == (2 if kind == "fork" else 1))
    pids = [int(name.removeprefix("child ")) for name in started.values_list("kind", flat=True)]
    wait_until(lambda: kind == "fork" or descendants(pids[0]), "the grandchild")
    pids += [below for pid in pids for below in descendants(pid)]
    assert all(is_running(pid) for pid in pids)

    end(process)

    wait_until(lambda: not any(is_running(pid) for pid in pids))
    if end is not stop:
        process.kill()
