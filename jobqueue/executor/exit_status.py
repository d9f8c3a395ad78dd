"""Exit codes of `run_executors`, and ways to end a process without waiting for its threads."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import sys
import threading
from typing import NoReturn

from jobqueue.executor.child_processes import end_child_processes
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

EXIT_OK, EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_QUIT = 0, 69, 70, 130, 131
EXIT_REPLACE = 75  # of a child: start another in its place at once

LINGER_SECONDS = 2.0  # for threads that tasks have left
FLUSH_SECONDS = 2.0  # for the last log lines; a reader of our output that hangs must not delay the end


_is_program = False


def become_program() -> None:
    """
    Note that this process runs nothing but an executor: what its bodies have started is to end with it.

    From then on SIGABRT and fatal signals print the stacks of all threads, also while a body keeps the GIL: to stderr,
    or to the file that the site has given to faulthandler.
    """
    global _is_program
    _is_program = True
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr is closed
            faulthandler.enable(sys.__stderr__)


def exit_now(code: int) -> NoReturn:
    """End this process at once, without waiting for its threads."""
    try:
        if _is_program:
            end_child_processes()
        flush()
    finally:
        os._exit(code)


def exit_despite_threads(code: int) -> None:
    """
    End this program in LINGER_SECONDS if threads that tasks have started and left keep it alive.

    The main thread is about to end. Python then waits for them without limit. Functions of atexit, which run
    after that, have all the time they need.
    """

    def end() -> None:
        others = {threading.main_thread(), threading.current_thread()}
        names = ", ".join(thread.name for thread in threading.enumerate() if thread not in others)
        logger.warning("executor.threads_abandoned threads=%s", names)
        exit_now(code)

    timer = threading.Timer(LINGER_SECONDS, end)
    timer.daemon = True
    timer.start()
    # Functions of atexit run when these threads have ended; the one registered last runs first.
    atexit.register(timer.cancel)


def flush() -> None:
    """Write out what was logged and printed, as far as the output accepts it in FLUSH_SECONDS."""

    def write() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        logging.shutdown()

    writer = threading.Thread(target=write, name="flush", daemon=True)
    writer.start()
    writer.join(FLUSH_SECONDS)
