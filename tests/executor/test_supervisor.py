"""When the supervisor replaces a child."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from jobqueue.executor.exit_status import EXIT_OK, EXIT_UNAVAILABLE
from jobqueue.executor.health.status import HealthAggregator, HealthStatus, StatusReader
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.supervisor import Child, Supervisor, is_stopped
from tests.waiting import wait_until

SECONDS = 120.0
CHILD = """
import os, socket, sys, time
socket.socket(fileno=int(sys.argv[1])).sendall(sys.argv[2].encode() + b"\\n")
if sys.argv[3] == "hang":
    time.sleep(3600.0)
os._exit(int(sys.argv[3]))
"""


class Rig:
    """A supervisor. Its children report a status and end with a code. The last start requests a stop."""

    def __init__(
        self,
        processes: int,
        code: int | str,
        status: HealthStatus,
        *,
        max_starts: int,
        wait: float = 0.0,
        frozen_after: float = SECONDS,
    ) -> None:
        self.started: list[int] = []
        self.frozen: list[str] = []
        self._code, self._status, self._max_starts = code, status, max_starts
        self._signals = SignalPipe()
        health = HealthAggregator(SECONDS)
        self.supervisor = Supervisor(
            processes,
            self._start,
            self._signals,
            health,
            shutdown_timeout=SECONDS,
            longest_wait_seconds=wait,
            is_finite=True,
            frozen_after=frozen_after,
        )

    def run(self) -> int:
        with self._signals.installed(signal.SIGCHLD):
            code = self.supervisor.run()
        self._signals.close()
        return code

    def _start(self, number: int, frozen: str) -> Child:
        self.started.append(number)
        self.frozen.append(frozen)
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), self._status.to_json().decode(), str(self._code)]
            process = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], pass_fds=[theirs.fileno()])
        if len(self.started) == self._max_starts:
            self._signals._write(signal.SIGQUIT if self._code == "hang" else signal.SIGTERM, None)
        return Child(number, process, StatusReader(ours), time.monotonic())


@pytest.mark.parametrize("code", [1, 3, 70, 75, 76])
def test_child_is_replaced_for_any_exit_code(code: int) -> None:
    rig = Rig(1, code, HealthStatus(), max_starts=3)
    assert rig.run() in (EXIT_OK, 70)
    assert rig.started == [0, 0, 0]


def test_child_that_had_no_work_left_is_not_replaced() -> None:
    rig = Rig(2, EXIT_OK, HealthStatus(), max_starts=3)
    assert rig.run() == EXIT_OK
    assert rig.started == [0, 1]


@pytest.mark.parametrize("code", [EXIT_OK, 1, EXIT_UNAVAILABLE])
def test_child_that_was_stopped_on_request_is_not_replaced(code: int, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1, code, HealthStatus(was_stopped_on_request=True), max_starts=2)
    with caplog.at_level("INFO"):
        assert rig.run() == EXIT_OK
    assert rig.started == [0]
    (level,) = [record.levelname for record in caplog.records if "process.not_restarted" in record.getMessage()]
    assert level == ("INFO" if code == EXIT_OK else "WARNING")


def test_supervisor_ends_when_no_first_child_finds_the_database() -> None:
    rig = Rig(2, EXIT_UNAVAILABLE, HealthStatus(), max_starts=3, wait=SECONDS)
    assert rig.run() == EXIT_UNAVAILABLE
    assert rig.started == [0, 1]


def test_child_that_does_not_move_is_replaced_and_its_executor_named(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1, "hang", HealthStatus(executor_id="id of the first"), max_starts=2, frozen_after=0.2)

    rig.run()

    assert rig.started == [0, 0]
    assert rig.frozen == ["", "id of the first"]
    assert sum(line.startswith("process.stalled process=0") for line in caplog.messages) == 1


def test_process_that_was_stopped_is_not_taken_for_frozen() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
