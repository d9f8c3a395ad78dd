"""`--processes N`: start N executors, restart those that end, pass signals on."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable

from jobqueue.executor.process import EXIT_OK, EXIT_REPLACE, SignalPipe

logger = logging.getLogger("jobqueue.executor")

LONGEST_WAIT_SECONDS = 30.0
GOOD_LIFE_SECONDS = 30.0  # who lived so long is replaced at once
LOOK_SECONDS = 0.2
KILL_AFTER_SECONDS = 10.0  # beyond the children's own grace period


class Supervisor:
    """
    Forks children before any thread or connection exists, and keeps their number.

    start: what a child does; its result is the child's exit code.
    """

    def __init__(
        self, processes: int, start: Callable[[int], int], shutdown_timeout: float, *, is_finite: bool
    ) -> None:
        self._start = start
        self._children: dict[int, tuple[int, float]] = {}  # pid -> number, when it began
        self._due: dict[int, float] = dict.fromkeys(range(processes), 0.0)  # number -> when to start it
        self._failures: dict[int, int] = {}
        self._shutdown_timeout = shutdown_timeout
        self._is_finite = is_finite  # children that end well (--burst, --max-tasks) are not started again
        self._signals = SignalPipe()
        self._stop_by: float | None = None
        self._exit_code = EXIT_OK

    def run(self) -> int:
        """Return when all children have ended for good."""
        with self._signals.installed():
            while self._children or (self._due and self._stop_by is None):
                self._start_due()
                for number in self._signals.read(LOOK_SECONDS):
                    self._pass_on(number)
                self._reap()
                self._kill_overdue()
        return self._exit_code

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, at in self._due.items() if at <= now and self._stop_by is None]:
            del self._due[number]
            pid = os.fork()
            if pid == 0:
                self._be_child(number)
            self._children[pid] = (number, now)
            logger.info("supervisor.started process %d pid=%d", number, pid)

    def _be_child(self, number: int) -> None:
        code = 70
        try:
            random.seed()
            code = self._start(number)
        except BaseException:  # whatever it is, it must not run on as a second supervisor
            logger.exception("supervisor.child")
        finally:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _pass_on(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) and self._stop_by is None:
            self._stop_by = time.monotonic() + self._shutdown_timeout + KILL_AFTER_SECONDS
        # A Ctrl-C reaches the whole process group: the children have it already.
        if (
            number == signal.SIGINT
            and os.getpgrp() == os.getpid()
            and sys.stdin is not None
            and sys.stdin.isatty()
        ):
            return
        for pid in self._children:
            os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        number, began_at = self._children.pop(pid)
        if self._stop_by is not None:
            self._exit_code = self._exit_code or max(code, 0)
            return
        if code == EXIT_OK and self._is_finite:
            return
        lived = time.monotonic() - began_at
        failures = (
            0
            if lived > GOOD_LIFE_SECONDS or code in (EXIT_OK, EXIT_REPLACE)
            else self._failures.get(number, 0) + 1
        )
        self._failures[number] = failures
        wait = (
            0.0
            if failures == 0
            else min(LONGEST_WAIT_SECONDS, 0.5 * 2.0**failures) * random.uniform(0.8, 1.0)
        )
        self._due[number] = time.monotonic() + wait
        reason = f"signal {-code}" if code < 0 else f"code {code}"
        logger.warning(
            "supervisor.ended process %d pid=%d with %s; again in %.1f s", number, pid, reason, wait
        )

    def _kill_overdue(self) -> None:
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
