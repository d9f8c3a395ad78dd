"""`--processes N`: start N executors, restart those that end, pass signals on."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from jobqueue.executor.farewell import Farewell
from jobqueue.executor.log import logger
from jobqueue.executor.process import (
    CTRL_C_AGAIN,
    EXIT_DISMISSED,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUIT,
    EXIT_RELOAD,
    EXIT_REPLACE,
    EXIT_UNAVAILABLE,
    leave,
)
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.ward import Ward

LONGEST_WAIT_SECONDS = 30.0
GOOD_LIFE_SECONDS = 30.0  # who lived so long is replaced at once
KILL_AFTER_SECONDS = 10.0  # beyond the children's own grace period
LOOK_SECONDS = 1.0
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """
    Keeps so many children, until it is told to stop; run() returns the exit code.

    is_finite: children that end well are not started again (--burst). ward: tells others how we all are.

    What the code of a child's end means counts only where the executor has said it: a body that calls
    os._exit(3) asks for no reload, and one that calls os._exit(0) has not drained the queue. A child that people told
    to stop has said so when it heard it, and has no successor, however it ends.

    Children take a repeated SIGTERM or SIGINT for the first one, since a terminal or a service manager
    may send them what we pass on too: "hand back now" is SIGQUIT to them.
    """

    def __init__(
        self,
        processes: int,
        launch: Fork,
        shutdown_timeout: float,
        signals: SignalPipe,
        *,
        is_finite: bool = False,
        ward: Ward | None = None,
    ) -> None:
        self._ward = ward
        self._processes, self._launch, self._signals = processes, launch, signals
        self._shutdown_timeout, self._is_finite = shutdown_timeout, is_finite
        self._children: dict[int, tuple[int, float]] = {}  # pid -> number, when it began
        self._due: dict[int, float] = dict.fromkeys(range(processes), 0.0)  # number -> when to start it
        self._failures: dict[int, int] = {}
        self._first = set(range(processes))  # whose first process has not ended yet
        self._in_vain = 0  # first processes that never found the database
        self._is_quiet = False
        self._stop_by: float | None = None
        self._exit_code = EXIT_OK

    def run(self) -> int:
        """Return when all children have ended for good."""
        while self._children or (self._due and self._stop_by is None):
            self._start_due()
            for number in self._signals.read(self._wait_seconds()):
                self._pass_on(number)
            self._reap()
            self._kill_overdue()
            self._look()
        if self._ward is not None:
            self._ward.close()
        return self._exit_code

    def _look(self) -> None:
        if self._ward is not None:
            children = {pid: began_at for pid, (_, began_at) in self._children.items()}
            wanted = len(children) + len(self._due)
            self._ward.look(children, wanted, is_stopping=self._stop_by is not None)

    def _wait_seconds(self) -> float:
        """Seconds until something is to be done; the end of a child is news of its own (SIGCHLD)."""
        moments = list(self._due.values()) if self._stop_by is None else [self._stop_by]
        return min([LOOK_SECONDS, *(max(0.0, at - time.monotonic()) for at in moments)])

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, at in self._due.items() if at <= now and self._stop_by is None]:
            try:
                pid = self._launch(number)
            except OSError as error:  # no memory or process numbers left
                self._due[number] = now + self._wait_after_failure(number)
                logger.error("supervisor.launch process %d: %s", number, error)
                continue
            del self._due[number]
            self._children[pid] = (number, now)
            if self._is_quiet:
                os.kill(pid, signal.SIGTSTP)
            logger.info("supervisor.started process %d pid=%d", number, pid)

    def _pass_on(self, number: int) -> None:
        if number in STOPPING:
            is_repeated, self._stop_by = self._stop_by is not None, time.monotonic() + KILL_AFTER_SECONDS
            if number == signal.SIGQUIT:
                self._exit_code = EXIT_QUIT
            elif is_repeated:
                self._exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_OK
                number = signal.SIGQUIT
            else:
                self._stop_by += self._shutdown_timeout
                if number == signal.SIGINT:
                    logger.warning(CTRL_C_AGAIN)
            self._tell(number)
        elif number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGUSR1):
            self._is_quiet = number == signal.SIGTSTP or (self._is_quiet and number != signal.SIGCONT)
            self._tell(number)

    def _tell(self, number: int) -> None:
        for pid in self._children:
            os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        number, began_at = self._children.pop(pid)
        words = self._launch.last_words(pid)
        is_meant = words[-1:] == [code]
        if self._stop_by is not None:
            if code == EXIT_INTERNAL:
                self._exit_code = self._exit_code or EXIT_INTERNAL
            return
        if is_meant and code == EXIT_OK and self._is_finite:
            return
        if EXIT_DISMISSED in words:
            self._first.discard(number)
            is_fine = is_meant and code == EXIT_OK
            logger.log(
                logging.INFO if is_fine else logging.WARNING,
                "supervisor.dismissed process %d pid=%d was told to stop%s; no other takes its place",
                number,
                pid,
                "" if is_fine else f" and ended with {reason_of(code)}",
            )
            return
        self._in_vain += is_meant and code == EXIT_UNAVAILABLE and number in self._first
        self._first.discard(number)
        if self._in_vain == self._processes:
            # As a single process does: later on outages are waited out, at the start they may be a wrong setting.
            self._exit_code = EXIT_UNAVAILABLE
            self._stop_by = time.monotonic() + KILL_AFTER_SECONDS
            self._tell(signal.SIGTERM)
            return
        is_fine = is_meant and code in (EXIT_OK, EXIT_RELOAD, EXIT_REPLACE)
        is_fine = is_fine or time.monotonic() - began_at > GOOD_LIFE_SECONDS
        if is_fine:
            self._failures.pop(number, None)
        wait = 0.0 if is_fine else self._wait_after_failure(number)
        self._due[number] = time.monotonic() + wait
        reason = reason_of(code)
        if not is_meant and code in (EXIT_OK, EXIT_RELOAD, EXIT_REPLACE, EXIT_UNAVAILABLE):
            reason += ", unannounced"
        level = logging.INFO if is_fine else logging.WARNING
        logger.log(level, "supervisor.ended process %d pid=%d with %s; again in %.1f s", number, pid, reason, wait)

    def _wait_after_failure(self, number: int) -> float:
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        return min(LONGEST_WAIT_SECONDS, 0.25 * 2.0 ** min(failures, 20)) * random.uniform(0.8, 1.0)

    def _kill_overdue(self) -> None:
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            for pid, (number, _) in self._children.items():
                logger.error("supervisor.killed process %d pid=%d did not end", number, pid)
                os.kill(pid, signal.SIGKILL)
            self._exit_code = self._exit_code or EXIT_INTERNAL
            self._stop_by = time.monotonic() + KILL_AFTER_SECONDS


def reason_of(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


class Fork:
    """
    Launches children as copies of this process, before any thread or connection exists.

    start: what a child does, given its number, its signals, and what to call when people tell it to stop for good;
    returns the child's exit code.
    """

    def __init__(self, start: Callable[[int, SignalPipe, Callable[[], None]], int], signals: SignalPipe) -> None:
        self._start, self._signals = start, signals
        self._farewells: dict[int, Farewell] = {}  # pid -> what that child says in the end
        self._lifeline, self._held = os.pipe()  # closes when we die, however that comes about

    def __call__(self, number: int) -> int:
        farewell = Farewell()
        handled = {getattr(signal, name) for name in SignalPipe.HANDLED} | {signal.SIGCHLD}
        # Until the child has handlers of its own, a signal to it would arrive in our pipe.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        try:
            pid = os.fork()
            if pid == 0:
                self._be_child(number, before, farewell)
            self._farewells[pid] = farewell
            return pid
        except OSError:
            farewell.close()
            raise
        finally:
            farewell.hand_over()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def last_words(self, pid: int) -> list[int]:
        """Give what a child said that has ended: EXIT_DISMISSED where that is so, and the code it meant to end with."""
        return list(self._farewells.pop(pid).hear())

    def _be_child(self, number: int, mask: set[int | signal.Signals], farewell: Farewell) -> NoReturn:
        code = EXIT_INTERNAL
        try:
            os.close(self._held)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            random.seed()
            with SignalPipe(lifeline=self._lifeline).installed() as signals:
                self._signals.close()
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                code = self._start(number, signals, lambda: farewell.say(EXIT_DISMISSED))
        except BaseException:  # whatever it is, it must not run on as a second supervisor
            logger.exception("supervisor.child")
        finally:
            try:
                farewell.say(code)  # in vain where a body has closed what it says it with
            finally:
                leave(code)
