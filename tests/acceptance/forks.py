"""
Start programs from one process that has loaded Django and psycopg: 0.2 s of processor time instead of 0.5.

Each program loads settings, apps and our own code itself, as in a normal start.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO
from unittest.mock import patch

from tools.children import end_with_parent
from tools.postgres_programs import short_temporary_folder

# None of them reads a setting on import.
LIBRARIES = ["django.contrib.admin", "django.core.management.base", "django.db.backends.postgresql.base", "PIL.Image"]


class Forked:
    """The part of subprocess.Popen that the tests use. Output and errors share one pipe."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, ignoring: signal.Signals | None
    ) -> None:
        context = _context()
        reader, writer = context.Pipe(duplex=False)
        self._process = context.Process(
            target=become, args=(writer, list(command), dict(environment), folder, ignoring)
        )
        self._process.start()
        writer.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout: IO[str] = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("run_executors", seconds)
        return code


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with patch.object(tempfile, "tempdir", short_temporary_folder()):  # its socket needs a short path
        forkserver.ensure_running()
    return context


def become(
    output: Connection,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    ignoring: signal.Signals | None,
) -> None:
    """Run a Python command in the child, in a session of its own."""
    os.setsid()
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prepare(ignoring)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command[1:]
    sys.orig_argv[:] = command  # the command that replaces this process
    try:
        runpy.run_path(command[1], run_name="__main__")
    finally:
        logging.shutdown()  # multiprocessing does not run atexit functions


def prepare(ignoring: signal.Signals | None) -> None:
    """Prepare the child: Linux kills it if the tests die without cleaning up."""
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    if ignoring is not None:
        signal.signal(ignoring, signal.SIG_IGN)
