"""The measured processes: start them, wait until they are ready, and stop them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tools.children import end_with_parent

CHECKOUT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 30
READY_SECONDS = 60
CHECK_SECONDS = 0.02


@contextmanager
def executors(count: int, *flags: str) -> Iterator[list[int]]:
    """Run executors. Yield their process ids when all wait for tasks."""
    with workers(count, [sys.executable, "manage.py", "run_executors", *flags]) as pids:
        yield pids


@contextmanager
def workers(count: int, command: Sequence[str]) -> Iterator[list[int]]:
    """Run processes of a program that prints a line "ready". SIGTERM stops them."""
    started: list[subprocess.Popen[str]] = []
    try:
        started += [_start(command) for _ in range(count)]
        for process in started:
            _wait_until_ready(process)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            _end(process)


@contextmanager
def programs(
    commands: Sequence[Sequence[str]], *, ready: str, environment: Mapping[str, str], folder: Path
) -> Iterator[list[int]]:
    """Run processes with their logs in files. A process is ready when a line of its log matches."""
    started: list[tuple[subprocess.Popen[bytes], Path]] = []
    try:
        for number, command in enumerate(commands):
            log = folder / f"worker-{number}.log"
            started.append((_start_logged(command, environment, log), log))
        for process, log in started:
            _wait_for_line(process, log, ready)
        yield [process.pid for process, _ in started]
    finally:
        for process, _ in started:
            process.terminate()
        for process, log in started:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.unlink(missing_ok=True)


def _start_logged(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1"} | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )


def _wait_for_line(process: subprocess.Popen[bytes], log: Path, ready: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not re.search(ready, text := log.read_text(errors="replace"), re.MULTILINE):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"A worker was not ready: {process.args!r}\n{text[-2000:]}")
        time.sleep(CHECK_SECONDS)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the executor writes its log at the default level, and it is discarded
        text=True,
        preexec_fn=partial(end_with_parent, signal.SIGKILL),
    )


def _wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready"):
            return
    raise RuntimeError(f"A worker ended before it was ready: {process.args!r}")


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
