"""Servers of a run: one private PostgreSQL with a database for each contestant, and Redis if it is installed."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import cluster, cpu, redis, workers
from benchmarks.contestants import STORES, Contestant, Store
from tools.postgres import Cluster, throwaway_cluster

PRODUCE_SECONDS = 900


class NotMeasured(RuntimeError):
    """The reason why a contestant has no figures."""


@dataclass(frozen=True, slots=True)
class Arena:
    server: Cluster
    broker: redis.Redis | None
    folder: Path
    databases: dict[str, PeerDatabase] = field(default_factory=dict)

    def database(self, peer: str, condition: str = "") -> PeerDatabase:
        """Return the database of a peer with empty tables, or the one of a condition. Create it at the first call."""
        name = re.sub(r"\W+", "_", f"{peer}_{condition}").strip("_").lower()
        if name not in self.databases:
            if condition:
                self._create(name, template=self.database(peer).name)
            else:
                self._create(name, template="template1")
            self.databases[name] = PeerDatabase(self, name, peer)
            if condition:
                self.databases[name].clear()  # the template may have rows of an earlier round
            else:
                self.databases[name].set_up()
        return self.databases[name]

    def _create(self, name: str, *, template: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )

    def cpu_seconds(self) -> float:
        return cluster.cpu_seconds(self.server)

    def broker_seconds(self) -> float:
        return cpu.seconds_of_tree(self.broker.pid) if self.broker else 0.0

    def check(self, contestant: Contestant) -> None:
        if contestant.needs_redis and self.broker is None:
            raise NotMeasured("no `redis-server` is installed here")
        if not is_installed(contestant.package):
            raise NotMeasured(f"{contestant.package} is not installed in this Python {platform.python_version()}")


@dataclass(frozen=True, slots=True)
class PeerDatabase:
    """The database of a peer in one condition."""

    arena: Arena
    name: str
    peer: str

    @property
    def url(self) -> str:
        return self.arena.server.url_for(self.name)

    @property
    def store(self) -> Store:
        """Return the tables of the peer. Raises KeyError for a peer that stores its jobs in Redis."""
        return STORES[self.peer]

    @property
    def is_in_redis(self) -> bool:
        return self.peer not in STORES

    @contextmanager
    def connected(self, *, quietly: bool = True) -> Iterator[psycopg.Connection[Any]]:
        """Connect. quietly: without the triggers of the peer, which would send a million notifications."""
        role = "replica" if quietly else "origin"
        with psycopg.connect(self.url, autocommit=True, options=f"-c session_replication_role={role}") as connection:
            yield connection

    def set_up(self) -> None:
        """Create the tables of the peer. Keep the row of one no-op job as a pattern for fill()."""
        self.produce("setup", 0)
        if self.is_in_redis:
            return
        self.produce("bulk", 1)
        with self.connected() as connection:
            jobs = sql.Identifier(self.store.jobs)
            pattern = sql.SQL("CREATE TABLE pattern AS SELECT * FROM {} LIMIT 1").format(jobs)
            connection.execute(pattern)
        self.clear()

    def clear(self) -> None:
        if self.is_in_redis:
            assert self.arena.broker is not None
            self.arena.broker.clear()
            return
        tables = sql.SQL(", ").join(map(sql.Identifier, self.store.empty))
        with self.connected() as connection:
            connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(tables))

    def fill(self, count: int, changed: Mapping[str, str] | None = None, *, quietly: bool = True) -> None:
        """Add rows like the pattern. changed: SQL expressions for columns that differ."""
        if count <= 0:
            return
        if self.is_in_redis:
            self.produce("bulk", count)
            return
        expressions: Mapping[str, str] = {**self.store.fresh, **(changed or {})}
        with self.connected(quietly=quietly) as connection:
            columns = [
                name
                for (name,) in connection.execute(
                    "SELECT column_name::text FROM information_schema.columns WHERE table_name = 'pattern'"
                    " AND table_schema = 'public' ORDER BY ordinal_position"
                )
            ]
            values = [sql.SQL(expressions[name]) if name in expressions else sql.Identifier(name) for name in columns]
            connection.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM pattern, generate_series(1, {}) n").format(
                    sql.Identifier(self.store.jobs),
                    sql.SQL(", ").join(map(sql.Identifier, columns)),
                    sql.SQL(", ").join(values),
                    sql.Literal(count),
                )
            )

    def settle(self) -> None:
        """Vacuum and checkpoint before the measurement, so that neither runs during it."""
        if self.is_in_redis:
            return
        with self.connected() as connection:
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(self.store.jobs)))
            connection.execute("CHECKPOINT")

    def now(self) -> datetime:
        with psycopg.connect(self.url, autocommit=True) as connection:
            at: datetime = scalar(connection, "SELECT clock_timestamp()")
            return at

    def takeable(self) -> int:
        with self.connected() as connection:
            return int(scalar(connection, f"SELECT count(*) {self.store.left}"))

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        broker = {"REDIS_SOCKET": str(self.arena.broker.socket)} if self.arena.broker else {}
        return {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "benchmarks.settings", **broker, **(extra or {})}

    def produce(self, verb: str, count: int, environment: Mapping[str, str] | None = None) -> float:
        """Enqueue from another process. Return the seconds that its calls took."""
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.produce", self.peer + "_app", verb, str(count)],
            cwd=workers.CHECKOUT,
            env=os.environ | {"PYTHONPATH": str(workers.CHECKOUT)} | self.environment(environment),
            capture_output=True,
            text=True,
            timeout=PRODUCE_SECONDS,
        )
        if done.returncode:
            raise NotMeasured(f"{verb} of {self.peer} failed: {done.stderr.strip().splitlines()[-1:]}")
        return float(done.stdout.rpartition("seconds ")[2])

    @contextmanager
    def at_work(
        self, contestant: Contestant, *flags: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[list[int]]:
        """Run the processes of a contestant. Yield their process ids when they are ready."""
        self.arena.check(contestant)
        commands = [[*command, *flags] for command in contestant.commands()]
        extra = {**self.environment(contestant.environment), **(environment or {})}
        with workers.programs(commands, ready=contestant.ready, environment=extra, folder=self.arena.folder) as pids:
            yield pids


@contextmanager
def opened() -> Iterator[Arena]:
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # PGSERVICE and similar variables name another server
    with (
        tempfile.TemporaryDirectory(prefix="jq-bench-") as folder,
        throwaway_cluster(**cluster.SETTINGS, max_connections="400") as server,
        redis.private_redis(Path(folder)) as broker,
    ):
        yield Arena(server, broker, Path(folder))


def scalar(connection: psycopg.Connection[Any], query: str, parameters: Any = None) -> Any:
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    return {package: version(package) for package in packages if is_installed(package)}


def is_installed(package: str) -> bool:
    return any(distributions(name=package))
