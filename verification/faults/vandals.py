"""Bodies that change the process around them, as libraries do that think it is theirs."""

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


def leave_for_a_folder_that_goes() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def empty_the_environment() -> None:
    os.environ.clear()


def move_to_another_time_zone() -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def speak_another_language() -> None:
    locale.setlocale(locale.LC_ALL, "C")


def forget_where_code_is() -> None:
    sys.path.clear()


def close_what_is_said() -> None:
    sys.stdout.close()
    sys.stderr.close()


def give_sockets_no_time() -> None:
    socket.setdefaulttimeout(0.001)


def make_chance_foreseeable() -> None:
    random.seed(1)


def make_warnings_errors() -> None:
    warnings.simplefilter("error")


def say_nothing_any_more() -> None:
    logging.disable(logging.CRITICAL)


def collect_nothing_any_more() -> None:
    gc.disable()
    sys.setswitchinterval(0.5)


def leave_threads() -> None:
    for _ in range(5):
        threading.Thread(target=threading.Event().wait, name="left-behind").start()


def leave_programs() -> None:
    for _ in range(3):
        subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def end_a_process_of_its_own() -> None:
    """As multiprocessing.Pool.terminate() does."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600.0,))
    process.start()
    process.terminate()
    process.join(20.0)
    assert process.exitcode == -signal.SIGTERM, process.exitcode


DEEDS: dict[str, Callable[[], Any]] = {
    deed.__name__.replace("_", " "): deed
    for deed in (  # one after the other, all in one process
        end_a_process_of_its_own,
        leave_for_a_folder_that_goes,
        empty_the_environment,
        move_to_another_time_zone,
        block_signals,
        speak_another_language,
        close_what_is_said,
        give_sockets_no_time,
        make_chance_foreseeable,
        make_warnings_errors,
        say_nothing_any_more,
        collect_nothing_any_more,
        leave_threads,
        leave_programs,
        forget_where_code_is,
    )
}


@task(max_attempts=1)
def do(deed: str) -> None:
    DEEDS[deed]()


@task(max_attempts=1)
def take_a_signal() -> None:
    """Only the main thread may, and that is not ours."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@task(backoff=SOON)
def close_descriptors() -> None:
    """All but those of the terminal: connections, pipes, and whatever the interpreter has open."""
    os.closerange(3, 512)


@task(max_attempts=1)
def close_standard_streams(then_connect: bool) -> None:
    """As careless code does that makes a daemon of its process. What is opened next gets their numbers."""
    if then_connect:
        connection.close()
    for number in (0, 1, 2):
        with suppress(OSError):  # a neighbour closes them, too
            os.close(number)
    if then_connect:
        connection.ensure_connection()


@task(max_attempts=1)
def complain() -> int:
    """Write to stderr, whatever that is, and ask the database something."""
    connection.close()
    with connection.cursor() as cursor:
        os.write(2, b"a line for stderr\n")
        cursor.execute("SELECT 7")
        return int(cursor.fetchone()[0])


@task(max_attempts=20, backoff=SOON)
def ask_anew() -> int:
    """Open a connection, and ask the database something."""
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 7")
        return int(cursor.fetchone()[0])
