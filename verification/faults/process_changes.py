"""Bodies that change the state of their process, as some libraries do."""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import connection

from jobqueue import Backoff, task

SOON = Backoff(base=0.1, cap=0.5, jitter=0.0)


def work_in_deleted_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def change_time_zone() -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def close_output() -> None:
    sys.stdout.close()
    sys.stderr.close()


def disable_garbage_collection() -> None:
    gc.disable()
    sys.setswitchinterval(0.5)


def leave_threads() -> None:
    for _ in range(5):
        threading.Thread(target=threading.Event().wait, name="left-behind").start()


def leave_child_processes() -> None:
    for _ in range(3):
        subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def terminate_child_process() -> None:
    """Terminate a child process, as multiprocessing.Pool.terminate() does."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600.0,))
    process.start()
    process.terminate()
    process.join(20.0)
    assert process.exitcode == -signal.SIGTERM, process.exitcode


CHANGES: dict[str, Callable[[], Any]] = {  # run one after another in one process
    "terminate a child process": terminate_child_process,
    "work in a deleted folder": work_in_deleted_folder,
    "empty the environment": os.environ.clear,
    "change the time zone": change_time_zone,
    "block signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "change the locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "close stdout and stderr": close_output,
    "set a tiny socket timeout": lambda: socket.setdefaulttimeout(0.001),
    "seed the random generator": lambda: random.seed(1),
    "turn warnings into errors": lambda: warnings.simplefilter("error"),
    "disable logging": lambda: logging.disable(logging.CRITICAL),
    "disable garbage collection": disable_garbage_collection,
    "leave threads": leave_threads,
    "leave child processes": leave_child_processes,
    "clear the import path": sys.path.clear,
}


@task(max_attempts=1)
def do(change: str) -> None:
    CHANGES[change]()


@task(max_attempts=1)
def set_signal_handler() -> None:
    """Set a signal handler. Only the main thread may do so, and bodies never run there."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@task(backoff=SOON)
def close_descriptors() -> None:
    """Close all descriptors above the standard streams: connections, pipes and all others."""
    os.closerange(3, 512)


@task(max_attempts=1)
def close_standard_streams(then_connect: bool) -> None:
    """Close the standard streams, as code does that becomes a daemon. New descriptors then get their numbers."""
    if then_connect:
        connection.close()
    for number in (0, 1, 2):
        with suppress(OSError):  # another task closes them as well
            os.close(number)
    if then_connect:
        connection.ensure_connection()


@task(max_attempts=1)
def write_to_stderr() -> int:
    """Write to file descriptor 2 and query the database."""
    connection.close()
    with connection.cursor() as cursor:
        os.write(2, b"a line for stderr\n")
        cursor.execute("SELECT 7")
        return int(cursor.fetchone()[0])


@task(max_attempts=20, backoff=SOON)
def query_on_new_connection() -> int:
    """Open a connection and query the database."""
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 7")
        return int(cursor.fetchone()[0])
