"""`--processes N` and `--reload`: start executors as child processes, replace those that end, pass signals on."""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from django.utils import autoreload

from jobqueue.executor import exit_status as codes
from jobqueue.executor.child_processes import end_group
from jobqueue.executor.health.status import HealthAggregator, HealthStatus, StatusReader
from jobqueue.executor.process import CTRL_C_AGAIN, ExecutorProcess
from jobqueue.executor.signals import SignalPipe, signals_blocked
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.posix import signals

logger = get_logger(__name__)

CHILD_VARIABLE = "JOBQUEUE_CHILD"  # in a child's environment: its number, and the descriptor of its socket
LOOP_SECONDS = 1.0
SUSPENDED_SECONDS = 3.0  # between two turns of the loop: the supervisor, and perhaps the machine, stood still
LONG_LIFE_SECONDS = 30.0  # a child that lived longer is replaced at once
KILL_AFTER_SECONDS = 10.0  # beyond the children's own grace period
STOPPING = signals("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


@dataclass(frozen=True, slots=True)
class Child:
    """A process with one executor."""

    number: int  # from 1
    process: subprocess.Popen[bytes]  # as subprocess has started it
    reports: StatusReader  # what it writes about its health
    started_at: float  # monotonic


class SupervisorLink:
    """
    A child's end of the socket to its supervisor. The other end closes when the supervisor is gone.

    frozen: the id of the executor whose place this one takes because a task has frozen it, or "".
    """

    def __init__(self, number: int, connection: socket.socket, frozen: str) -> None:
        self.number, self.connection, self.frozen = number, connection, frozen

    @classmethod
    def from_environment(cls) -> SupervisorLink | None:
        """Return None in a process that has no supervisor. What tasks start does not inherit the link."""
        if (value := os.environ.pop(CHILD_VARIABLE, None)) is None:
            return None
        number, descriptor, frozen = value.split(",")
        os.set_inheritable(int(descriptor), False)
        return cls(int(number), socket.socket(fileno=int(descriptor)), frozen)

    def report(self, status: HealthStatus) -> None:
        with suppress(OSError):  # the supervisor is gone; SignalPipe notices that
            self.connection.sendall(status.to_json() + b"\n")


def start_child(number: int, frozen: str = "") -> Child:
    """Start this program again, as a child. frozen: as in SupervisorLink. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        # The child inherits the mask: a signal that arrives before it has handlers stays pending until it has.
        with theirs, signals_blocked():
            process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, CHILD_VARIABLE: f"{number},{theirs.fileno()},{frozen}"},
                pass_fds=[theirs.fileno()],
                process_group=0,  # so that what its bodies start can be ended with it, even after a SIGKILL
            )
    except OSError:
        ours.close()
        raise
    return Child(number, process, StatusReader(ours), time.monotonic())


def watch_code(executor: ExecutorProcess) -> None:
    """Replace the executor when Django's autoreloader sees that code has changed (`--reload`)."""
    reloader = autoreload.get_reloader()
    autoreload.autoreload_started.send(sender=reloader)  # templates, translations, and what the site adds
    ticker = reloader.tick()
    next(ticker)  # notes how the files are now, so that no later change is missed; takes a second

    def run() -> None:
        try:
            for _ in ticker:
                pass
        except SystemExit:  # how it asks for a new process
            executor.replace()

    threading.Thread(target=run, name="reloader", daemon=True).start()


class Supervisor:
    """
    Keeps a number of children until it is asked to stop; run() returns the exit code.

    is_finite: children that end well are not replaced (--burst). longest_wait_seconds: before a child that failed
    again and again is replaced. frozen_after: seconds of silence after which a child is killed and replaced, because a
    body keeps the lock of the interpreter (GIL), and no thread of the child moves. A child that a `stop` command has
    reached is not replaced, however it ends.

    Children treat a repeated SIGTERM or SIGINT like the first one, because a terminal or a service manager may send
    them what the supervisor passes on. To them "release everything now" is SIGQUIT.

    It has more than 15 attributes because it keeps the starts, failures and deadlines of each child.
    """

    def __init__(
        self,
        processes: int,
        start: Callable[[int, str], Child],
        signals: SignalPipe,
        health: HealthAggregator,
        *,
        shutdown_timeout: float,
        longest_wait_seconds: float,
        is_finite: bool,
        frozen_after: float = math.inf,
    ) -> None:
        self._processes, self._start, self._signals, self._health = processes, start, signals, health
        self._shutdown_timeout, self._longest_wait = shutdown_timeout, longest_wait_seconds
        self._is_finite, self._frozen_after = is_finite, frozen_after
        self._frozen: dict[int, str] = {}  # by number: the executor that was killed because it did not move
        self._turned_at = self._patient_until = time.monotonic()
        self._children: dict[int, Child] = {}  # by process id
        self._start_at: dict[int, float] = dict.fromkeys(range(processes), 0.0)  # by number
        self._failures: dict[int, int] = {}  # in a row, by number
        self._first = set(range(processes))  # numbers of which the first process still runs
        self._unavailable = 0  # first processes that never found the database
        self._is_paused = False
        self._kill_at: float | None = None  # None while it does not stop
        self._exit_code = codes.EXIT_OK

    def run(self) -> int:
        """Return when all children have ended for good."""
        while self._children or (self._start_at and self._kill_at is None):
            self._start_due()
            for number in self._signals.read(self._wait_seconds()):
                self._on_signal(number)
            for child in list(self._children.values()):
                if (code := child.process.poll()) is not None:
                    self._on_end(child, code)
            self._kill_overdue()
            reports = {pid: child.reports for pid, child in self._children.items()}
            expected = len(reports) + len(self._start_at)
            self._health.update(reports, expected, is_stopping=self._kill_at is not None)
            self._kill_frozen()
        return self._exit_code

    def _wait_seconds(self) -> float:
        """Return the seconds until the next deadline. The end of a child wakes us by SIGCHLD."""
        moments = list(self._start_at.values()) if self._kill_at is None else [self._kill_at]
        return min([LOOP_SECONDS, *(max(0.0, moment - time.monotonic()) for moment in moments)])

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, at in self._start_at.items() if at <= now and self._kill_at is None]:
            try:
                child = self._start(number, self._frozen.pop(number, ""))
            except OSError as error:  # no memory or process numbers left
                self._start_at[number] = now + self._wait_after_failure(number)
                logger.error("process.start_failed process=%d error=%s", number, error)
                continue
            del self._start_at[number]
            self._children[child.process.pid] = child
            if self._is_paused:
                child.process.send_signal(signal.SIGTSTP)
            logger.info("process.started process=%d pid=%d", number, child.process.pid)

    def _on_signal(self, number: int) -> None:
        if number in STOPPING:
            is_repeated, self._kill_at = self._kill_at is not None, time.monotonic() + KILL_AFTER_SECONDS
            if number == signal.SIGQUIT:
                self._exit_code = codes.EXIT_QUIT
            elif is_repeated:
                self._exit_code = codes.EXIT_INTERRUPTED if number == signal.SIGINT else codes.EXIT_OK
                number = signal.SIGQUIT
            else:
                self._kill_at += self._shutdown_timeout
                if number == signal.SIGINT:
                    logger.warning("executor.stop_requested hint=%s", CTRL_C_AGAIN)
            self._send(number)
        elif number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGUSR1):
            self._is_paused = number == signal.SIGTSTP or (self._is_paused and number != signal.SIGCONT)
            self._send(number)

    def _send(self, number: int) -> None:
        for child in self._children.values():
            child.process.send_signal(number)

    def _on_end(self, child: Child, code: int) -> None:
        del self._children[child.process.pid]
        end_group(child.process.pid)
        child.reports.close()
        self._unavailable += code == codes.EXIT_UNAVAILABLE and child.number in self._first
        if self._kill_at is not None:
            if code == codes.EXIT_INTERNAL:
                self._exit_code = self._exit_code or codes.EXIT_INTERNAL
        elif child.reports.was_stopped_on_request:
            self._first.discard(child.number)
            level = logging.INFO if code == codes.EXIT_OK else logging.WARNING
            details = child.number, child.process.pid, describe_end(code)
            logger.log(level, "process.not_restarted process=%d pid=%d reason=%s", *details)
        elif code == codes.EXIT_UNAVAILABLE and self._unavailable == self._processes:
            # As a single process does: later on it waits for the database, at the start the settings may be wrong.
            self._exit_code = codes.EXIT_UNAVAILABLE
            self._kill_at = time.monotonic() + KILL_AFTER_SECONDS
            self._send(signal.SIGTERM)
        elif code != codes.EXIT_OK or not self._is_finite:
            self._replace(child, code)

    def _replace(self, child: Child, code: int) -> None:
        self._first.discard(child.number)
        is_fine = code in (codes.EXIT_OK, codes.EXIT_REPLACE) or time.monotonic() - child.started_at > LONG_LIFE_SECONDS
        if is_fine:
            self._failures.pop(child.number, None)
        wait = 0.0 if is_fine else self._wait_after_failure(child.number)
        self._start_at[child.number] = time.monotonic() + wait
        level = logging.INFO if is_fine else logging.WARNING
        details = child.number, child.process.pid, wait, describe_end(code)
        logger.log(level, "process.ended process=%d pid=%d restart_in_s=%.1f reason=%s", *details)

    def _wait_after_failure(self, number: int) -> float:
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        return min(self._longest_wait, 0.25 * 2.0 ** min(failures, 20)) * random.uniform(0.8, 1.0)

    def _kill_frozen(self) -> None:
        """Kill children that have reported nothing for too long. One that was stopped with SIGSTOP is left alone."""
        now, before = time.monotonic(), self._turned_at
        self._turned_at = now
        if now - before > SUSPENDED_SECONDS:  # their silence may be ours
            self._patient_until = now + self._frozen_after
        if now < self._patient_until or self._kill_at is not None:
            return
        for pid, child in self._children.items():
            silent, status = now - child.reports.reported_at, child.reports.status
            if status is None or silent <= self._frozen_after or is_stopped(pid):
                continue
            if child.number in self._frozen:  # it has had time to print its stacks
                child.process.kill()
                continue
            logger.error(
                "process.stalled process=%d pid=%d silent_s=%.0f hint=A task keeps the GIL, so that no thread moves. "
                "Its stack is below. The process is killed; its tasks run alone next.",
                child.number,
                pid,
                silent,
            )
            self._frozen[child.number] = status.executor_id
            child.process.send_signal(signal.SIGABRT)

    def _kill_overdue(self) -> None:
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for pid, child in self._children.items():
                logger.error("process.killed process=%d pid=%d", child.number, pid)
                child.process.kill()
            self._exit_code = self._exit_code or codes.EXIT_INTERNAL
            self._kill_at = time.monotonic() + KILL_AFTER_SECONDS


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or a debugger. False where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def describe_end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
