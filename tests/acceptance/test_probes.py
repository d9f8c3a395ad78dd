"""`--health` and systemd: the health of real executors."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pytest

from jobqueue.models import Executor
from tests.acceptance.conftest import Site
from tests.acceptance.harness import Fleet, Process, wait_for_ended
from tests.acceptance.tasks import break_thread, compute, tiny, work
from tests.models import Effect
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.slow

LONG_SECONDS = 3600.0
HEALTH = ("--health", "127.0.0.1:0")
TWO = ("--processes", "2", "--threads", "1")
PROCESSES = pytest.mark.parametrize("processes", [(), TWO], ids=["one process", "two processes"])
Answer: TypeAlias = tuple[int, str]
OK: Answer = (200, "")


def probe(process: Process, path: str) -> Answer:
    """Send a probe. Return the status and the problems."""
    match = process.output.wait_for(r"^health .*http://(.*):(\d+)/livez, /readyz$")
    connection = HTTPConnection(match[1].strip("[]"), int(match[2]), timeout=DEADLINE_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        value: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    return response.status, "; ".join(problem["what"] for problem in value.get("problems", ()))


def wait_for_answer(process: Process, path: str, status: int, what: str = "") -> None:
    def has_come() -> bool:
        answer = probe(process, path)
        return answer[0] == status and what in answer[1]

    wait_until(has_come, f"{path} to be {status} {what}")


@PROCESSES
def test_idle_executor_is_ready_and_paused_one_is_not(fleet: Fleet, processes: tuple[str, ...]) -> None:
    process = fleet.start(*HEALTH, *processes)
    wait_for_answer(process, "/readyz", 200)
    assert probe(process, "/livez") == OK
    assert probe(process, "/metrics")[0] == 404
    process.send(signal.SIGTSTP)
    wait_for_answer(process, "/readyz", 503, "It is paused")
    assert probe(process, "/livez") == OK
    process.send(signal.SIGCONT)
    wait_for_answer(process, "/readyz", 200)
    assert process.stop() == 0


@PROCESSES
def test_probes_are_answered_until_the_last_task_has_ended(fleet: Fleet, processes: tuple[str, ...]) -> None:
    work.enqueue(LONG_SECONDS)
    process = fleet.start(*HEALTH, *processes)
    wait_until(Effect.objects.exists, "a running task")
    process.send(signal.SIGTERM)
    wait_for_answer(process, "/readyz", 503, "It is stopping.")
    assert probe(process, "/livez") == OK
    assert process.is_alive
    assert process.stop(signal.SIGQUIT) == 131


@PROCESSES
@pytest.mark.parametrize("thread", ["loop", "heartbeat"])
def test_livez_fails_when_a_thread_stalls(fleet: Fleet, thread: str, processes: tuple[str, ...]) -> None:
    process = fleet.start(*HEALTH, *processes, heartbeat_timeout=6)
    wait_for_answer(process, "/livez", 200)
    break_thread.enqueue(thread, "stalls")
    what = {"loop": "The loop has not moved", "heartbeat": "The heartbeat thread has not moved"}[thread]
    wait_for_answer(process, "/livez", 503, what)
    assert probe(process, "/readyz")[0] == 503


@PROCESSES
def test_livez_succeeds_when_the_database_is_unreachable(site: Site, processes: tuple[str, ...]) -> None:
    process = site.fleet.start(*HEALTH, *processes, heartbeat_timeout=3)
    wait_for_answer(process, "/readyz", 200)
    site.kill()
    wait_for_answer(process, "/readyz", 503, "The database is unreachable.")
    fenced_for = time.monotonic() + 6  # longer than a stalled thread is tolerated
    while time.monotonic() < fenced_for:
        assert probe(process, "/livez") == OK
        assert probe(process, "/readyz")[0] == 503
    site.start()
    wait_for_answer(process, "/readyz", 200)
    assert process.stop() == 0


def test_livez_succeeds_when_the_database_never_answers(fleet: Fleet) -> None:
    """A connection attempt neither fails nor succeeds for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        url = f"postgresql://nobody@127.0.0.1:{black_hole.getsockname()[1]}/nothing"
        process = fleet.launch(*HEALTH, environment={"DATABASE_URL": url}, heartbeat_timeout=1)
        wait_for_answer(process, "/readyz", 503, "It is not registered yet")
        silent_for = time.monotonic() + 6
        while time.monotonic() < silent_for:
            assert probe(process, "/livez") == OK


def test_livez_fails_when_a_child_is_frozen(fleet: Fleet) -> None:
    supervisor = fleet.start(*HEALTH, *TWO, heartbeat_timeout=2)
    wait_for_answer(supervisor, "/readyz", 200)
    victim = Executor.objects.filter(pid__in=supervisor.children()).values_list("pid", flat=True)[0]
    os.kill(victim, signal.SIGSTOP)
    try:
        wait_for_answer(supervisor, "/livez", 503, "It has not moved")
    finally:
        os.kill(victim, signal.SIGCONT)
    wait_for_answer(supervisor, "/livez", 200)
    assert supervisor.stop() == 0


def test_readyz_fails_until_a_killed_child_is_replaced(fleet: Fleet) -> None:
    supervisor = fleet.start(*HEALTH, *TWO)
    wait_for_answer(supervisor, "/readyz", 200)
    os.kill(supervisor.children()[0], signal.SIGKILL)
    wait_for_answer(supervisor, "/readyz", 503)
    wait_for_answer(supervisor, "/readyz", 200)
    assert Executor.objects.count() == 3
    assert len(supervisor.children()) == 2
    assert supervisor.stop() == 0


@PROCESSES
def test_taken_port_is_reported_before_a_claim(fleet: Fleet, processes: tuple[str, ...]) -> None:
    tiny.enqueue()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = fleet.launch("--health", f"127.0.0.1:{port}", *processes)
        assert process.wait() == 1
    process.output.wait_for(rf"CommandError: --health 127\.0\.0\.1:{port}: Address already in use")
    assert not Executor.objects.exists()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_probes_are_answered_over_ipv6(fleet: Fleet) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    process = fleet.start(environment={"JOBQUEUE_HEALTH": "[::1]:0"})
    wait_for_answer(process, "/readyz", 200)


class Manager:
    """The part of systemd that an executor sees: a socket in NOTIFY_SOCKET."""

    def __init__(self, path: str) -> None:
        self.path, self.received = path, list[str]()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self._socket.settimeout(0.05)

    def has_received(self, state: str) -> bool:
        try:
            while state not in self.received:
                self.received += self._socket.recv(4096).decode().splitlines()
        except TimeoutError:
            return False
        return True

    def wait_for(self, state: str) -> None:
        wait_until(lambda: self.has_received(state), f"{state} among {self.received}")

    def forget(self) -> None:
        while self.has_received("never said"):
            pass
        self.received.clear()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    with TemporaryDirectory() as folder:
        manager = Manager(getattr(request, "param", "") + str(Path(folder) / "notify"))
        yield manager
        manager.close()


@PROCESSES
@pytest.mark.parametrize("manager", ["", "@"], ids=["a file", "abstract"], indirect=True)
def test_systemd_gets_ready_watchdog_and_stopping(fleet: Fleet, manager: Manager, processes: tuple[str, ...]) -> None:
    compute.enqueue(0.01)
    process = fleet.start(*processes, environment={"NOTIFY_SOCKET": manager.path})
    manager.wait_for("READY=1")
    manager.forget()
    manager.wait_for("WATCHDOG=1")
    wait_for_ended(1)
    assert process.stop() == 0
    manager.wait_for("STOPPING=1")
    assert "READY=1" not in manager.received


@PROCESSES
def test_systemd_gets_no_watchdog_from_a_stalled_loop(
    fleet: Fleet, manager: Manager, processes: tuple[str, ...]
) -> None:
    process = fleet.start(*processes, environment={"NOTIFY_SOCKET": manager.path}, heartbeat_timeout=3)
    manager.wait_for("READY=1")
    break_thread.enqueue("loop", "stalls")

    def is_silent() -> bool:
        manager.forget()
        since = time.monotonic()
        while time.monotonic() - since < 3:
            if manager.has_received("WATCHDOG=1"):
                return False
        return True

    wait_until(is_silent, "silence")
    assert process.is_alive
