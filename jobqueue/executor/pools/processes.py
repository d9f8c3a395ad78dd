"""Child processes for the bodies of `@task(process=True)`: each runs one body at a time, for a worker thread."""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from jobqueue.declarations.function import FunctionTask
from jobqueue.exceptions import Interrupted, ProcessEnded
from jobqueue.executor.database.task_connections import note_refused
from jobqueue.executor.memory import resident_mib
from jobqueue.executor.running.attempt import RunningTask, running_here
from jobqueue.executor.running.body_process import BodyFailure, BodyRequest, loaded
from jobqueue.executor.running.thread_interrupts import clear_thread
from jobqueue.values.json import decode

KILL_SECONDS = 5.0  # after an interruption that a body does not follow
CHECK_SECONDS = 0.1  # between two looks at interruptions and at the memory
END_SECONDS = 1.0  # for a process to report its end
FREE_PART = 0.5  # of max_memory: a process that uses more already is replaced before such a body
MAX_BODIES = 100  # of one process, which is then replaced
PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; import django; django.setup(); \
from jobqueue.executor.running.body_process import main; main(int(sys.argv[1]), int(sys.argv[2]))"


class BodyProcesses:
    """
    The child processes of one executor. They are started when bodies need them, and used again.

    grace_seconds: how long a body has after its interruption, before its process is killed.
    """

    def __init__(self, backend: str, grace_seconds: float) -> None:
        self._backend, self._grace = backend, grace_seconds
        self._all: set[BodyProcess] = set()
        self._idle: list[BodyProcess] = []
        self._lock = threading.Lock()

    def wrap(self, task: FunctionTask[..., Any]) -> Callable[..., Any]:
        """Return a function that calls the function of a task in a child process, with the task of this thread."""

        @functools.wraps(task.func)
        def call(*_: Any, **__: Any) -> Any:
            running = running_here.get()
            assert running is not None
            return self._run(running, task)

        return call

    def _run(self, running: RunningTask, task: FunctionTask[..., Any]) -> Any:
        reasons: list[type[Interrupted]] = []

        def note(reason: type[Interrupted]) -> bool:
            reasons.append(reason)
            return True

        # From here on, an interruption is passed on to the process. No exception may arrive in this thread.
        running.disarm(functools.partial(clear_thread, threading.get_ident()))
        running.arm(note)
        process = self._take(task.max_memory)
        try:
            return process.run(running, task, reasons, self._grace)
        finally:
            self._give_back(process)

    def _take(self, max_memory: int | None) -> BodyProcess:
        while (process := self._pop_idle()) is not None:
            if process.is_alive and process.has_room(max_memory):
                return process
            self._end(process)
        process = BodyProcess(self._backend)
        with self._lock:
            self._all.add(process)
        return process

    def _pop_idle(self) -> BodyProcess | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, process: BodyProcess) -> None:
        with self._lock:
            if process.is_alive and not process.is_busy and process.bodies < MAX_BODIES:
                self._idle.append(process)
                return
        self._end(process)

    def _end(self, process: BodyProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()
        process.disconnect()

    def close(self) -> None:
        """Kill all processes. The thread that uses one disconnects it: closed twice, a descriptor may be another's."""
        with self._lock:
            processes, self._idle = [*self._all], []
            self._all.clear()
        for process in processes:
            process.kill()


class BodyProcess:
    """One child process. A worker thread at a time uses it. bodies: how many it has run."""

    def __init__(self, backend: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), *sys.path]
            # A site that was configured without this variable cannot be loaded in another process.
            self._process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], pass_fds=[theirs.fileno()])
        self._connection = Connection(ours.detach())
        self._backend, self.bodies, self.is_busy = backend, 0, False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def has_room(self, max_memory: int | None) -> bool:
        """Return whether a body with this limit may run here: what other bodies have left must not count as its own."""
        return max_memory is None or resident_mib(self._process.pid) <= max_memory * FREE_PART

    def run(
        self,
        running: RunningTask,
        task: FunctionTask[..., Any],
        reasons: list[type[Interrupted]],
        grace_seconds: float,
    ) -> Any:
        """
        Run the body of a task, and return its result. reasons: grows when the body is interrupted.

        Raises what the body raised, or ProcessEnded.
        """
        self.bodies, self.is_busy = self.bodies + 1, True
        identity = running.identity
        names = self._backend, identity.executor_id, identity.name, task.func.__module__
        try:
            self._connection.send(BodyRequest(running.claimed, *names))
            kind, value, has_seen_stop = self._await_answer(running, task.max_memory, reasons, grace_seconds)
        except (EOFError, OSError) as error:
            raise ProcessEnded(self._describe_end()) from error
        running.has_seen_stop |= has_seen_stop
        self.is_busy = False
        if kind == "returned":
            return decode(value)
        raised = error_of(value)
        if value.refused is not None:
            note_refused(value.refused, raised)
        raise raised

    def _await_answer(
        self, running: RunningTask, max_memory: int | None, reasons: list[type[Interrupted]], grace_seconds: float
    ) -> tuple[str, Any, bool]:
        """Keep what the body reports, and pass its interruptions on, until its answer comes. Raises as run()."""
        identity = running.identity
        passed_on, is_stop_sent, kill_at = 0, False, float("inf")
        while True:
            has_ended = not self.is_alive  # programs that it has forked may keep its socket open
            if self._connection.poll(CHECK_SECONDS):
                match self._connection.recv():
                    case ("progress", progress):
                        identity.reports.add_progress(progress)
                    case ("line", record):
                        identity.reports.add_line(running.log, logging.makeLogRecord(record))
                    case (kind, value, has_seen_stop):
                        return kind, value, has_seen_stop
            elif has_ended:
                raise EOFError
            if identity.stop.is_set() and not is_stop_sent:
                is_stop_sent = True
                self._connection.send(None)
            if len(reasons) > passed_on:
                passed_on = len(reasons)
                self._connection.send(reasons[-1])
                kill_at = min(kill_at, time.monotonic() + grace_seconds)
            if time.monotonic() > kill_at:
                self.kill()
                raise reasons[-1](f"The body did not stop within {grace_seconds:g} s. Its process was killed.")
            if max_memory is not None and (used := resident_mib(self._process.pid)) > max_memory:
                self.kill()
                raise ProcessEnded(f"The body's process used {used:.0f} MiB, more than max_memory={max_memory}.")

    def _describe_end(self) -> str:
        """Wait for the end of a process that has closed its socket, and say how it ended."""
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "The body has closed the socket of its process."
        if code >= 0:
            return f"The process of the body has ended with exit code {code}."
        reason = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
        with suppress(ValueError):
            return f"The process of the body was ended by signal {-code} ({signal.Signals(-code).name}{reason})."
        return f"The process of the body was ended by signal {-code}."

    def kill(self) -> None:
        """End it, from any thread."""
        self._process.kill()
        self._process.wait()

    def disconnect(self) -> None:
        """Close its socket. Only for the thread that uses it."""
        self._connection.close()


def error_of(failure: BodyFailure) -> BaseException:
    """Return the error that a body raised in its process, with the traceback from there as a note."""
    chain = [loaded(pickled) for pickled in failure.chain]
    for error, below in pairwise(chain):
        error.__cause__ = below
    chain[0].add_note(f"In the process of the body:\n{failure.traceback}")
    return chain[0]
