"""--reload: hand back what runs, and start the program again, when its code changes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from django.utils import autoreload

from jobqueue.executor.farewell import Farewell
from jobqueue.executor.log import logger
from jobqueue.executor.process import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUIT,
    EXIT_RELOAD,
    EXIT_REPLACE,
    EXIT_UNAVAILABLE,
    ExecutorProcess,
)
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.supervisor import STOPPING

LOOK_SECONDS = 1.0


def is_child() -> bool:
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def watch(executor: ExecutorProcess) -> None:
    """In the child: end the executor when code changes; called before it is ready, so that no change is missed."""
    reloader = autoreload.StatReloader()
    autoreload.autoreload_started.send(sender=reloader)  # templates and the like
    seen = _snapshot(reloader)

    def run() -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            now = _snapshot(reloader)
            changed = [path for path, moment in now.items() if moment > seen.get(path, moment)]
            seen.update(now)
            try:
                for path in changed:
                    reloader.notify_file_changed(path)
            except SystemExit:
                executor.replace(EXIT_RELOAD)
                return

    threading.Thread(target=run, name="reloader", daemon=True).start()


def supervise(signals: SignalPipe) -> int:
    """
    Run the program as a child, again and again as its code changes; returns the exit code.

    Not by Django's run_with_reloader: its parent kills the child a quarter of a second after a Ctrl-C,
    before it could hand back what runs.
    """
    while True:
        before = _snapshot(autoreload.StatReloader())
        arguments = [os.fspath(argument) for argument in autoreload.get_child_arguments()]
        farewell = Farewell()
        environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true", **farewell.to_program()}
        pid = os.posix_spawn(arguments[0], arguments, environment)
        farewell.hand_over()
        asked, code = _wait(pid, signals)
        is_meant = farewell.was(code)
        if asked == signal.SIGINT and code == EXIT_QUIT:
            return EXIT_INTERRUPTED
        if asked is not None or (is_meant and code in (EXIT_OK, EXIT_UNAVAILABLE)):
            return code
        if not (is_meant and code in (EXIT_RELOAD, EXIT_REPLACE)):
            logger.warning("The executor ended with code %d; it starts again when code changes.", code)
            if not _wait_for_change(signals, before):
                return EXIT_OK


def _wait(pid: int, signals: SignalPipe) -> tuple[int | None, int]:
    """Pass signals on until the child ends; returns the last that asked it to stop, and its exit code."""
    asked = None
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return asked, os.waitstatus_to_exitcode(status)
        for number in signals.read(LOOK_SECONDS):
            if number in STOPPING:
                # As from a supervisor: the child has a terminal's Ctrl-C already, "now" is SIGQUIT.
                os.kill(pid, signal.SIGQUIT if asked is not None else number)
                asked = number
            elif number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGUSR1):
                os.kill(pid, number)


def _wait_for_change(signals: SignalPipe, before: dict[Path, float]) -> bool:
    """Whether code has changed; else we were asked to stop."""
    while _snapshot(autoreload.StatReloader()) == before:
        if set(signals.read(LOOK_SECONDS)) & set(STOPPING):
            return False
    return True


def _snapshot(reloader: autoreload.StatReloader) -> dict[Path, float]:
    """Give the files of the code that is loaded here, and when each was changed."""
    return dict(reloader.snapshot_files())
