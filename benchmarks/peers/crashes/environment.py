"""The workers and the sender of one queue, on their own database. Faults kill, freeze and disconnect them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from benchmarks.peers.crashes.count import Results
from benchmarks.peers.crashes.sides import TIMEOUT_SECONDS, Side
from tools.children import end_with_parent
from tools.postgres import Cluster
from verification.faults import diary
from verification.faults.server_access import ServerAccess

CHECKOUT = Path(__file__).parents[3]
STRENGTH = 4  # workers
SUPERVISE_SECONDS = 0.05
# Without progress. Longer than the default wait of psycopg_pool for a connection, 30 s.
QUIET_SECONDS = 15 * TIMEOUT_SECONDS
LONGEST_SECONDS = 180.0  # for the remaining tasks, after the last fault
STOP_SECONDS = 10.0
RECOVERY_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class Worker:
    name: str
    process: subprocess.Popen[bytes]
    is_killed: bool = False  # by us

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


class PeerEnvironment(ServerAccess):
    """One run of a queue. exits: the number of workers that ended by themselves. Each is started again."""

    def __init__(self, cluster: Cluster, side: Side, database: str, folder: Path, *, is_behind_proxy: bool) -> None:
        super().__init__(cluster, database, folder)
        self.side, self.exits = side, 0
        self._is_behind_proxy = is_behind_proxy
        Path(self.diary).touch()
        self._workers: list[Worker] = []
        self._numbers = count(1)
        self._sender: subprocess.Popen[bytes] | None = None

    # --- processes

    def begin(self, seed: int) -> None:
        """Wait until all workers run."""
        program = [sys.executable, "-m", "benchmarks.peers.crashes.sender", self.side.function, str(seed)]
        self._sender = self._start("sender", program, self.url)
        self.supervise()
        self.wait_for(self.is_complete, "all workers at work")

    def supervise(self) -> None:
        """Replace each worker that has ended."""
        for worker in [worker for worker in self._workers if not worker.is_alive]:
            self._workers.remove(worker)
            self.exits += not worker.is_killed
        while len(self._workers) < STRENGTH:
            name = f"worker-{next(self._numbers)}"
            command = self.side.admin(*self.side.command)
            self._workers.append(Worker(name, self._start(name, command, self._worker_url)))

    @property
    def _worker_url(self) -> str:
        if not self._is_behind_proxy:
            return self.url
        return f"postgresql://postgres@127.0.0.1:{self.proxy.port}/{self.database}?sslmode=disable&gssencmode=disable"

    def _start(self, name: str, command: list[str], url: str) -> subprocess.Popen[bytes]:
        environment = site_environment(self.side, url) | {
            "PYTHONUNBUFFERED": "1",
            "PGAPPNAME": name,
            diary.VARIABLE: self.diary,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )

    def at_work(self) -> list[Worker]:
        """Return the living workers that have started a task."""
        busy = {note["who"] for note in diary.read(self.diary) if note["kind"] == "started"}
        return [worker for worker in self._workers if worker.is_alive and worker.name in busy]

    def is_complete(self) -> bool:
        return len(self.at_work()) == STRENGTH

    def recover(self) -> None:
        """Wait a short time for all workers to run again. Some never will."""
        until = time.monotonic() + RECOVERY_SECONDS
        while not self.is_complete() and time.monotonic() < until:
            self.wait(SUPERVISE_SECONDS)

    def victim(self, chance: random.Random) -> Worker:
        self.supervise()
        return chance.choice(self.wait_for(self.at_work, "a worker at work"))

    def hurt(self, whom: str) -> None:
        """Note a fault and its victims before it happens."""
        diary.note("hurt", path=self.diary, whom=whom)

    def kill(self, worker: Worker) -> None:
        worker.is_killed = True
        worker.process.kill()
        worker.process.wait()

    # --- waiting

    def wait(self, seconds: float) -> None:
        """Wait, and replace the workers that end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SUPERVISE_SECONDS))
            self.supervise()

    def states(self) -> str:
        return self.side.name

    def finish(self) -> Results:
        """Stop sending, wait until there is no progress, and count the results."""
        assert self._sender is not None
        _stop(self._sender)
        began = moved_at = time.monotonic()
        before: list[Any] = []
        while self.query("SELECT 1 FROM crash_task WHERE state IN ('waiting', 'running') LIMIT 1"):
            now = self.query(
                "SELECT state, count(*), (SELECT count(*) FROM crash_effect) FROM crash_task"
                " GROUP BY state ORDER BY state"
            )
            if now != before:
                before, moved_at = now, time.monotonic()
            if time.monotonic() - moved_at > QUIET_SECONDS or time.monotonic() - began > LONGEST_SECONDS:
                break
            self.wait(0.2)
        return Results(
            notes=diary.read(self.diary),
            states=dict(self.query("SELECT number, state FROM crash_task")),
            effects=[number for (number,) in self.query("SELECT number FROM crash_effect")],
        )

    def close(self) -> None:
        super().close()
        for worker in self._workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.terminate()
        for process in [worker.process for worker in self._workers] + ([self._sender] if self._sender else []):
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def site_environment(side: Side, url: str) -> dict[str, str]:
    site = {"DJANGO_SETTINGS_MODULE": side.settings_module, "DATABASE_URL": url, "PYTHONPATH": str(CHECKOUT)}
    return os.environ | site


class PeerServer:
    """One server with a template database for each queue. Each run gets a copy."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._templates: set[str] = set()
        self._numbers = count(1)

    @contextmanager
    def environment(self, side: Side, *, is_behind_proxy: bool) -> Iterator[PeerEnvironment]:
        self._cluster.start()
        if side.site not in self._templates:
            self._create_template(side)
        database = f"run_{next(self._numbers)}"
        self._create(database, side.site)
        folder = Path(tempfile.mkdtemp(prefix="jobqueue-peers-"))
        env = PeerEnvironment(self._cluster, side, database, folder, is_behind_proxy=is_behind_proxy)
        try:
            yield env
        finally:
            self._cluster.start()
            env.close()
        shutil.rmtree(folder)  # a failed run keeps its files

    def _create(self, name: str, template: str) -> None:
        with psycopg.connect(self._cluster.url, autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template)))

    def _create_template(self, side: Side) -> None:
        self._create(side.site, "template0")
        url = self._cluster.url_for(side.site)
        migrate = side.admin("migrate", "--verbosity", "0")
        subprocess.run(migrate, cwd=CHECKOUT, env=site_environment(side, url), check=True)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE crash_effect (number int NOT NULL)")
            connection.execute(f"CREATE VIEW crash_task AS {side.tasks}")
        self._templates.add(side.site)
