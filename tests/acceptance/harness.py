"""Start real executors, read their output, and wait for conditions, always with a deadline."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from jobqueue.models import Executor, Task
from tests.acceptance.forks import Forked, prepare
from tests.waiting import DEADLINE_SECONDS, states, wait_until

T = TypeVar("T")

CHECKOUT = Path(__file__).parents[2]
OTHERS = ("JOBQUEUE_", "TESTS_", "FORCE_COLOR", "PYTHON_COLORS", "DJANGO_COLORS")  # variables of the developer
ENDED = ["SUCCESSFUL", "FAILED", "CANCELLED"]


def ended() -> int:
    return Task.objects.filter(status__in=ENDED).count()


def wait_for_ended(count: int, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until this many tasks have finished."""
    wait_until(lambda: ended() >= count, f"the end of {count} tasks", seconds=seconds)


def wait_for_end(*, seconds: float = DEADLINE_SECONDS) -> dict[str, int]:
    """Wait until every task has finished. Return the counts by status."""
    wait_until(lambda: not Task.objects.exclude(status__in=ENDED).exists(), "the end of all tasks", seconds=seconds)
    return states()


class Output:
    """The output lines of a process."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        self._stream = stream
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(ValueError):  # wait_for_end() closes it
            for line in self._stream:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def find(self, pattern: str) -> list[re.Match[str]]:
        """Find the lines that contain a pattern."""
        with self._changed:
            return [match for line in self.lines if (match := re.search(pattern, line))]

    def wait_for(self, pattern: str, *, count: int = 1, seconds: float = DEADLINE_SECONDS) -> re.Match[str]:
        """Wait for the count-th line that contains a pattern."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or len(self.find(pattern)) >= count, seconds)
            if len(matches := self.find(pattern)) >= count:
                return matches[count - 1]
            raise AssertionError(f"No line with {pattern!r} within {seconds:g} s; only:\n" + "\n".join(self.lines))

    def wait_for_end(self) -> None:
        """Wait until no process has the output open. close() would wait without limit for one that has."""
        self._reader.join(DEADLINE_SECONDS)
        assert not self._reader.is_alive(), "another process has the output open:\n" + "\n".join(self.lines)
        self._stream.close()


class Process:
    """One `manage.py run_executors`: a single executor, or a supervisor with its children."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *flags: str,
        ignoring: signal.Signals | None = None,
        checkout: Path = CHECKOUT,
        new_interpreter: bool = False,
    ) -> None:
        command = [sys.executable, str(checkout / "manage.py"), "run_executors", *flags]
        self._process = (
            subprocess.Popen(
                command,
                cwd=checkout,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=partial(prepare, ignoring),
            )
            if new_interpreter
            else Forked(command, environment, checkout, ignoring)
        )
        assert self._process.stdout is not None
        self.output = Output(self._process.stdout)
        self.pid = self._process.pid

    def __repr__(self) -> str:
        return f"<run_executors {self.pid}>"

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> Process:
        self.output.wait_for("^ready")
        return self

    @property
    def row(self) -> Executor:
        """The executor's row. It exists before the executor is ready."""
        return Executor.objects.filter(pid=self.pid).latest("started_at")

    def children(self) -> list[int]:
        """Return the process ids of its children."""
        return [pid for pid, fields in stats() if int(fields[1]) == self.pid]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the process group, as a terminal does on Ctrl-C."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Its children survive."""
        self.send(signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)

    def wait(self, *, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for the end. Return the exit code."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(OSError, AssertionError):  # the stacks of all its threads and of those of its children
                self.send(signal.SIGUSR1)
                self.output.wait_for("Thread MainThread", seconds=5.0)
            lines = "\n".join(self.output.lines)
            raise AssertionError(f"{self} did not end within {seconds:g} s; {states()}:\n{lines}") from None
        self.output.wait_for_end()
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = DEADLINE_SECONDS) -> int:
        """Send a signal and wait for the end. Return the exit code."""
        self.send(number)
        return self.wait(seconds=seconds)

    def destroy(self) -> None:
        """Kill the process and all processes of its session."""
        for pid in [*([self.pid] if self.is_alive else []), *session_of(self.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)
        self.output.wait_for_end()


class Fleet:
    """The executors of one test. They end with the test."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {key: value for key, value in environment.items() if not key.startswith(OTHERS)}
        self._processes: list[Process] = []

    def launch(
        self,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        ignoring: signal.Signals | None = None,
        checkout: Path = CHECKOUT,
        checks: bool = False,
        **options: Any,
    ) -> Process:
        """
        Start an executor process with flags. options: the backend's OPTIONS, in lower case.

        checkout: folder of the code to run. checks: run Django's system checks, a sixth of a start. A process with
        checks, other code or Python variables starts a new interpreter. All others fork from a process that has
        loaded Django.
        """
        settings = {key.upper(): value for key, value in options.items()}
        process = Process(
            {
                **self._environment,
                "TESTS_OPTIONS": json.dumps(settings),
                "PYTHONPATH": str(checkout),
                **(environment or {}),
            },
            *([] if checks else ["--skip-checks"]),
            *flags,
            ignoring=ignoring,
            checkout=checkout,
            new_interpreter=checks
            or checkout != CHECKOUT
            or any(key.startswith("PYTHON") for key in environment or ()),
        )
        self._processes.append(process)
        return process

    def start(self, *flags: str, **more: Any) -> Process:
        """Launch, and wait until the executor is ready."""
        return self.launch(*flags, **more).wait_until_ready()

    def environment(self, **changes: str) -> dict[str, str]:
        return {**self._environment, **changes}

    def destroy(self) -> None:
        for process in self._processes:
            process.destroy()


@contextmanager
def fleet_of(environment: Mapping[str, str]) -> Iterator[Fleet]:
    fleet = Fleet(environment)
    try:
        yield fleet
    finally:
        fleet.destroy()


def session_of(pid: int) -> list[int]:
    """Return the processes of the session that a process has opened, orphans included."""
    return [process for process, fields in stats() if int(fields[3]) == pid and process != pid]


def stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process id with the fields of /proc/<pid>/stat, from the third on."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                yield int(path.name), (path / "stat").read_text().rpartition(")")[2].split()


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
