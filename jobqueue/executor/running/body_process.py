"""The program of a child process that runs the bodies of `@task(process=True)`, on connections of its own."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import pickle
import queue
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, cast
from uuid import UUID

from jobqueue.engine import engine_for
from jobqueue.exceptions import UnknownTask
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.process_guard import leave_if_forked, this_process
from jobqueue.executor.reports import LogOfBody, PendingReports, format_message, keeping_body_logs
from jobqueue.executor.running.attempt import (
    Attempt,
    ExecutorIdentity,
    Raised,
    Returned,
    RunningTask,
    run_interruptibly,
    running_here,
)
from jobqueue.executor.running.task_runner import original_error, poll, read_attempt
from jobqueue.executor.telemetry.errors import (
    TRACEBACK_CHARACTERS,
    answers,
    causes,
    describe_error,
    format_first_line,
    full_traceback,
    path_of,
)
from jobqueue.values.records import ClaimedTask
from jobqueue.values.reports import Progress

PR_SET_PDEATHSIG = 1  # of prctl(2): the signal at the end of the parent's thread


class BodyRequest(NamedTuple):
    """One body to run."""

    claimed: ClaimedTask  # as the executor has it
    backend: str  # the alias in TASKS
    executor_id: UUID  # that has claimed it
    name: str  # of the executor
    module: str  # that declares the task


class BodyFailure(NamedTuple):
    """The error that a body raised."""

    chain: list[bytes]  # the error; if it answers another one, such as a Retry, that one, and so on
    traceback: str
    refused: str | None  # the database that gave the body no connection, if that is why


class SentReports(PendingReports):
    """Sends what a body reports to the executor, which keeps it."""

    def __init__(self, outbox: queue.SimpleQueue[Any]) -> None:
        super().__init__()
        self._outbox = outbox

    def add_progress(self, progress: Progress) -> None:
        self._outbox.put(("progress", progress))

    def add_line(self, log: LogOfBody, record: logging.LogRecord) -> None:
        message = format_message(record)
        if record.exc_info and (error := record.exc_info[1]) is not None:
            message = f"{message} {format_first_line(error)}".lstrip()
        values = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname, "msg": message}
        self._outbox.put(("line", values))


class BodyRunner:
    """
    Runs one body after the other in the main thread.

    Two threads talk to the executor, because an interruption may arrive at any line of the main thread.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox: queue.SimpleQueue[tuple[str, RunningTask]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._connections = TaskConnections()

    def run(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"jobqueue-body{work.__name__}", daemon=True).start()
        self._connections.enter()
        while True:
            module, running = self._inbox.get()
            import_module(module)  # Django may not import it by itself
            identity = running.identity
            logs = keeping_body_logs(identity.reports, identity.log_of_caller)
            with logs if identity.options.keep_log_lines else nullcontext():
                answer = running.variables.run(self._call, running)
            self._outbox.put(answer)

    def _read(self) -> None:
        """Take requests, and interruptions of the last one. None: the executor stops."""
        running: RunningTask | None = None
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, BodyRequest):
                    running = self._make_running(message)
                    self._inbox.put((message.module, running))
                elif running is not None:
                    if message is None:
                        running.identity.stop.set()
                    else:
                        running.interrupt(message)
        except (EOFError, OSError):
            os._exit(0)  # the executor is gone

    def _make_running(self, request: BodyRequest) -> RunningTask:
        identity = ExecutorIdentity(
            engine=engine_for(request.backend),
            executor_id=request.executor_id,
            name=request.name,
            reports=SentReports(self._outbox),
        )
        return RunningTask(request.claimed, identity)

    def _write(self) -> None:
        while True:
            message = self._outbox.get()
            try:
                self._connection.send(message)
            except OSError:
                os._exit(0)

    def _call(self, running: RunningTask) -> tuple[str, Any, bool]:
        running_here.set(running)
        attempt = read_attempt(running, self._connections)
        if not isinstance(attempt, Attempt):
            reason = attempt.error or UnknownTask("The process of the body cannot prepare it.")
            return "raised", failure_of(reason), False
        running.start(None)  # the executor looks at the timeout
        ending = run_interruptibly(attempt, partial(poll, attempt))
        try:
            self._connections.check()
        except Exception as error:  # noqa: BLE001 - the body has left a transaction open
            ending = Raised(error)
        answer: tuple[str, Any, bool]
        if isinstance(ending, Returned):
            answer = "returned", ending.value.return_value, running.has_seen_stop
        else:
            raised = original_error(running, ending.error)
            refused = self._connections.refused(causes(raised))
            answer = "raised", failure_of(raised, refused), running.has_seen_stop
        if running.reason is not None:
            self._connections.close()  # the cancel of a statement may still be under way
        self._connections.reset()
        return answer


def failure_of(error: BaseException, refused: str | None = None) -> BodyFailure:
    return BodyFailure([*map(dumped, answers(error))], full_traceback(error)[-TRACEBACK_CHARACTERS:], refused)


def dumped(error: BaseException) -> bytes:
    """Pickle an error; if it cannot be pickled, its class and message; if these cannot either, both as text."""
    message = describe_error(error)
    for value in ((error,), (type(error), message)):
        with suppress(Exception):  # the site's class decides how it is pickled
            pickled = pickle.dumps(value)
            loaded(pickled)
            return pickled
    return pickle.dumps((RuntimeError, f"{path_of(error)}: {message}"))


def loaded(pickled: bytes) -> BaseException:
    """Return the error of dumped(). It comes from a process of ours."""
    match pickle.loads(pickled):  # noqa: S301
        case (error,):
            return cast("BaseException", error)
        case (kind, message):
            return cast("BaseException", kind.__new__(kind, message))
        case other:
            raise TypeError(f"No error: {other!r}")


def main(descriptor: int, parent: int) -> None:
    """Run bodies until the executor is gone. It also stops this process: signals of a terminal are not for it."""
    faulthandler.enable()  # a crash prints the stacks of all threads
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that the body starts would inherit
    if sys.platform == "linux":  # a body that keeps the GIL does not see the end of the socket
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    process = this_process()
    os.set_inheritable(descriptor, False)
    try:
        BodyRunner(Connection(descriptor)).run()
    finally:
        leave_if_forked(process)
