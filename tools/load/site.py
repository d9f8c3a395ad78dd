"""The site and its executors as real processes, on loopback only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from tools.children import end_with_parent
from tools.postgres import CHECKOUT

START_SECONDS = 60
STOP_SECONDS = 20


@contextmanager
def process(name: str, *arguments: str, environment: Mapping[str, str], logs: Path) -> Iterator[Callable[[], None]]:
    """Run a program during the block. Yield a function that raises RuntimeError if it has ended by itself."""
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=CHECKOUT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def check() -> None:
        if child.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(f"The {name} ended with exit code {child.returncode}:\n{tail}")

    try:
        yield check
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def server(environment: Mapping[str, str], logs: Path) -> Iterator[int]:
    """Serve the site. Yield the port when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with process(
        "server",
        *("-m", "gunicorn", "--no-control-socket", "--worker-class", "gthread", "--workers", "2", "--threads", "8"),
        *("--preload", "--keep-alive", "30", "--bind", f"127.0.0.1:{port}", "django.core.wsgi:get_wsgi_application()"),
        environment=environment,
        logs=logs,
    ) as check:
        deadline = time.monotonic() + START_SECONDS
        while not answers(port):
            check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"The server did not answer within {START_SECONDS} s.")
            time.sleep(0.05)
        yield port


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/jobqueue/health/live")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def executors(count: int, environment: Mapping[str, str], logs: Path) -> Iterator[Callable[[], None]]:
    flags = ["--processes", str(count), "--shutdown-timeout", "5s", "-v", "0"]
    with process("executors", "manage.py", "run_executors", *flags, environment=environment, logs=logs) as check:
        yield check


def environment_for(url: str, token_hash: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("JOBQUEUE_", "PG"))}
    return {
        **clean,
        "DJANGO_SETTINGS_MODULE": "tools.load.settings",
        "DATABASE_URL": url,
        "LOAD_TOKEN": token_hash,
        "PYTHONUNBUFFERED": "1",
    }
