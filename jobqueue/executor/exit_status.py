"""Exit codes of `run_executors`, and ways to end a process without waiting for its threads."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Container
from typing import NoReturn

from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

EXIT_OK, EXIT_UNAVAILABLE, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_QUIT = 0, 69, 70, 130, 131
EXIT_REPLACE = 75  # of a child: start another in its place at once

LINGER_SECONDS = 2.0  # for threads that tasks have left
FLUSH_SECONDS = 2.0  # for the last log lines; a reader of our output that hangs must not delay the end


def exit_now(code: int) -> NoReturn:
    """End this process at once, without waiting for its threads."""
    try:
        flush()
    finally:
        os._exit(code)


def exit_despite_threads(before: Collection[threading.Thread], code: int) -> None:
    """
    Keep threads that tasks have started and left from delaying the end of this program.

    The main thread is about to end. Python then waits without limit for threads that are not daemons, and for daemons
    that belong to a concurrent.futures pool. before: the threads that no task has started.
    """
    pool_threads: Container[object] = getattr(concurrent.futures.thread, "_threads_queues", ())

    def remaining() -> list[threading.Thread]:
        started = [thread for thread in threading.enumerate() if thread not in before]
        return [thread for thread in started if not thread.daemon or thread in pool_threads]

    def wait() -> None:
        deadline = time.monotonic() + LINGER_SECONDS
        for thread in remaining():
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := remaining():
            names = ", ".join(thread.name for thread in left)
            logger.warning("executor.threads_abandoned threads=%s", names)
            exit_now(code)

    if remaining():
        threading.Thread(target=wait, name="exit", daemon=True).start()


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
