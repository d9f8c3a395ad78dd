"""Run the parts of the demo as real processes, and end them: a database, the site and executors."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import IO

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from jobqueue.models import Executor, Heartbeat
from tools.children import end_with_parent
from tools.postgres import CHECKOUT, demo_cluster

START_SECONDS = 60
STOP_SECONDS = 20
HEARTBEAT_SECONDS = 30
HOST = "127.0.0.1"
# Requests to this machine must not go to a proxy of the environment.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def database() -> Iterator[None]:
    """Start the demo's own PostgreSQL, unless DATABASE_URL names another, and migrate it."""
    cluster = None if os.environ.get("DATABASE_URL") else demo_cluster()
    if cluster:
        cluster.start()
    try:
        call_command("migrate", verbosity=0, interactive=False)
        yield
    finally:
        connections.close_all()
        if cluster:
            cluster.stop()


@contextmanager
def only_demo(say: Callable[[str], object]) -> Iterator[None]:
    """Wait until no other `manage.py demo` runs here: each would count the tasks of the other."""
    folder = Path(settings.MEDIA_ROOT).parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another demo is running. Waiting for its end ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def admin_password() -> str | None:
    """Create the superuser `admin`. Return its password, or None if the user's own database has an `admin`."""
    user, is_new = get_user_model().objects.get_or_create(
        username="admin", defaults={"is_superuser": True, "is_staff": True}
    )
    is_theirs = bool(os.environ.get("DATABASE_URL"))
    if is_theirs and not is_new:
        return None
    password = secrets.token_urlsafe(9) if is_theirs else "admin"
    user.set_password(password)
    user.save()
    return password


def free_port(preferred: int = 0) -> int:
    """Return the preferred port, or the next free one. 0: any free port."""
    for port in [0] if preferred == 0 else range(preferred, preferred + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
    raise CommandError(f"No port is free from {preferred} to {preferred + 99}.")


@dataclass(slots=True)
class Processes:
    """The child processes of one demo command."""

    site_url: str
    logs: Path = field(default_factory=lambda: Path(settings.MEDIA_ROOT).parent / "logs")
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Processes:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start_site(self) -> None:
        """Start the site. Return when it answers."""
        port = self.site_url.rpartition(":")[2]
        with self.log("site").open("wb") as log:
            self._start("site", "runserver", "--noreload", "--insecure", f"{HOST}:{port}", output=log)
        self._wait("site", self._site_answers)

    def start_executors(self, *arguments: str, output: IO[bytes] | None = None) -> None:
        """Start `run_executors`; its log goes to `output`, or into a file."""
        if output:
            self._start("executors", "run_executors", *arguments, output=output)
            return
        with self.log("executors").open("wb") as log:
            self._start("executors", "run_executors", *arguments, output=log)

    def wait_for_executors(self) -> None:
        self._wait("executors", is_executor_alive)

    def check(self) -> None:
        """Raise CommandError if a child has ended by itself."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise CommandError(f"The {name} ended with exit code {process.returncode}:\n{self.tail(name)}")

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        with suppress(FileNotFoundError):
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def stop(self) -> dict[str, int]:
        """
        Stop the executors, then the site, which the executors call. Return the exit codes.

        A second Ctrl-C kills them at once.
        """
        patience = time.monotonic() + STOP_SECONDS
        codes = {}
        for name in sorted(self.running):
            process = self.running.pop(name)
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(max(0.1, patience - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
            codes[name] = process.wait()
        return codes

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise CommandError(f"The {name} did not start within {START_SECONDS} s:\n{self.tail(name)}")
            time.sleep(0.05)

    def _start(self, name: str, *arguments: str, output: IO[bytes]) -> None:
        self.running[name] = subprocess.Popen(
            [sys.executable, str(CHECKOUT / "manage.py"), *arguments],
            cwd=CHECKOUT,
            env={**os.environ, **self._environment()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C at the terminal must reach only this process, which stops the children in order.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def _environment(self) -> Mapping[str, str]:
        return {
            "SITE_URL": self.site_url,
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        }

    def _site_answers(self) -> bool:
        try:
            with DIRECT.open(f"{self.site_url}/", timeout=10):
                return True
        except urllib.error.HTTPError as error:
            raise CommandError(f"The site answers {error.code}:\n{self.tail('site')}") from None
        except OSError:
            return False


def is_executor_alive() -> bool:
    silent = timezone.now() - timedelta(seconds=HEARTBEAT_SECONDS)
    return Heartbeat.objects.filter(state=Executor.State.RUNNING, at__gt=silent).exists()


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that `finally` blocks run."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
