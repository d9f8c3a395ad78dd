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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count as numbers
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from demo_project.children import end_with_parent
from demo_project.postgres import Cluster
from verification.faults import diary
from verification.faults.peers.count import Seen
from verification.faults.peers.sides import Side
from verification.faults.peers.timing import TIMEOUT_SECONDS
from verification.faults.proxy import Proxy

T = TypeVar("T")

CHECKOUT = Path(__file__).parents[3]
STRENGTH = 4  # workers
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
# without progress. Longer than the default wait of psycopg_pool for a connection, 30 s.
QUIET_SECONDS = 15 * TIMEOUT_SECONDS
LONGEST_SECONDS = 180.0  # for the remaining tasks, after the last fault
STOP_SECONDS = 10.0
RECOVERY_SECONDS = 10.0


class Stalled(RuntimeError):
    """A wait took too long."""


@dataclass(slots=True, eq=False)
class Worker:
    name: str
    process: subprocess.Popen[bytes]
    is_killed: bool = False  # by us

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


class Crew:
    """One run. exits: the number of workers that ended by themselves. Each is started again."""

    def __init__(self, cluster: Cluster, side: Side, database: str, folder: Path, *, is_behind_proxy: bool) -> None:
        self.cluster, self.side, self.exits = cluster, side, 0
        self._database, self._folder, self._is_behind_proxy = database, folder, is_behind_proxy
        self._diary = str(folder / "diary.jsonl")
        Path(self._diary).touch()
        self._workers: list[Worker] = []
        self._connection: psycopg.Connection[Any] | None = None
        self._numbers = numbers(1)
        self._sender: subprocess.Popen[bytes] | None = None

    @cached_property
    def proxy(self) -> Proxy:
        return Proxy(self.cluster.data / ".s.PGSQL.5432")

    # --- processes

    def begin(self, seed: int) -> None:
        """Wait until all workers run."""
        program = [sys.executable, "-m", "verification.faults.peers.sender", self.side.function, str(seed)]
        self._sender = self._start("sender", program, self.cluster.url_for(self._database))
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
            return self.cluster.url_for(self._database)
        return f"postgresql://postgres@127.0.0.1:{self.proxy.port}/{self._database}?sslmode=disable&gssencmode=disable"

    def _start(self, name: str, command: list[str], url: str) -> subprocess.Popen[bytes]:
        environment = {
            "DJANGO_SETTINGS_MODULE": self.side.settings_module,
            "DATABASE_URL": url,
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONUNBUFFERED": "1",
            "PGAPPNAME": name,
            diary.VARIABLE: self._diary,
        }
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )

    def at_work(self) -> list[Worker]:
        """Return the living workers that have started a task."""
        busy = {note["who"] for note in diary.read(self._diary) if note["kind"] == "started"}
        return [worker for worker in self._workers if worker.is_alive and worker.name in busy]

    def is_complete(self) -> bool:
        return len(self.at_work()) == STRENGTH

    def recover(self) -> None:
        """Wait a short time for all workers to run again. Some never will."""
        until = time.monotonic() + RECOVERY_SECONDS
        while not self.is_complete() and time.monotonic() < until:
            self.wait(LOOK_SECONDS)

    def victim(self, chance: random.Random) -> Worker:
        self.supervise()
        return chance.choice(self.wait_for(self.at_work, "a worker at work"))

    def hurt(self, whom: str) -> None:
        """Note a fault and its victims before it happens."""
        diary.note("hurt", path=self._diary, whom=whom)

    def kill(self, worker: Worker) -> None:
        worker.is_killed = True
        worker.process.kill()
        worker.process.wait()

    # --- the database

    def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Query the server without the proxy. Repeat the query if the server was just killed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if self._connection is None:
                    url = self.cluster.url_for(self._database)
                    self._connection = psycopg.connect(url, autocommit=True, application_name="rig")
                cursor = self._connection.execute(query, parameters or None)
                return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError:
                self.forget_connection()
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_SECONDS)

    def forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- waiting

    def wait(self, seconds: float) -> None:
        """Wait, and replace the workers that end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            self.supervise()

    def wait_for(self, condition: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise Stalled(f"{self.side.name}: {what}: not within {PATIENCE_SECONDS:g} s; see {self._folder}")
            self.wait(LOOK_SECONDS)
        return value

    def finish(self) -> Seen:
        """Stop sending, wait until there is no progress, and count the results."""
        assert self._sender is not None
        _stop(self._sender)
        began = moved_at = time.monotonic()
        before: list[Any] = []
        while self.ask("SELECT 1 FROM trust_task WHERE state IN ('waiting', 'running') LIMIT 1"):
            now = self.ask(
                "SELECT state, count(*), (SELECT count(*) FROM trust_effect) FROM trust_task"
                " GROUP BY state ORDER BY state"
            )
            if now != before:
                before, moved_at = now, time.monotonic()
            if time.monotonic() - moved_at > QUIET_SECONDS or time.monotonic() - began > LONGEST_SECONDS:
                break
            self.wait(0.2)
        return Seen(
            notes=diary.read(self._diary),
            states=dict(self.ask("SELECT number, state FROM trust_task")),
            effects=[number for (number,) in self.ask("SELECT number FROM trust_effect")],
        )

    def close(self) -> None:
        self.forget_connection()
        for worker in self._workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.terminate()
        for process in [worker.process for worker in self._workers] + ([self._sender] if self._sender else []):
            _stop(process)
        if "proxy" in self.__dict__:
            self.proxy.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Stable:
    """One server with a template database for each queue. Each run gets a copy."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._patterns: dict[str, str] = {}
        self._numbers = numbers(1)

    @contextmanager
    def crew(self, side: Side, *, is_behind_proxy: bool) -> Iterator[Crew]:
        self._cluster.start()
        if side.site not in self._patterns:
            self._patterns[side.site] = self._pattern(side)
        database = f"run_{next(self._numbers)}"
        self._create(database, self._patterns[side.site])
        folder = Path(tempfile.mkdtemp(prefix="jobqueue-peers-"))
        crew = Crew(self._cluster, side, database, folder, is_behind_proxy=is_behind_proxy)
        try:
            yield crew
        finally:
            self._cluster.start()
            crew.close()
        shutil.rmtree(folder)  # a failed run keeps its files

    def _create(self, name: str, template: str) -> None:
        with psycopg.connect(self._cluster.url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )

    def _pattern(self, side: Side) -> str:
        self._create(side.site, "template0")
        url = self._cluster.url_for(side.site)
        environment: Mapping[str, str] = {
            "DJANGO_SETTINGS_MODULE": side.settings_module,
            "DATABASE_URL": url,
            "PYTHONPATH": str(CHECKOUT),
        }
        subprocess.run(
            side.admin("migrate", "--verbosity", "0"), cwd=CHECKOUT, env=os.environ | environment, check=True
        )
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE trust_effect (number int NOT NULL)")
            connection.execute(f"CREATE VIEW trust_task AS {side.tasks}")
        return side.site
