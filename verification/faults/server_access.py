"""What every fault environment needs: queries that survive restarts of the server, proxies, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from tools.postgres import Cluster
from verification.faults.proxy import Proxy

T = TypeVar("T")

PATIENCE_SECONDS = 180.0  # reached by failures only
CHECK_SECONDS = 0.01
REST = 10  # pause after a check, in durations of the check
QUERY_SECONDS = 120.0  # a killed server may need a minute to recover on a busy machine


class WaitTimeout(AssertionError):
    """An awaited condition did not become true in time."""


class ServerAccess:
    """A database on a server that tests may kill, and a folder for the files of the run."""

    def __init__(self, cluster: Cluster, database: str, folder: Path) -> None:
        self.cluster, self.database, self.folder = cluster, database, folder
        self.url = cluster.url_for(database)
        self.diary = str(folder / "diary.jsonl")
        self._proxies: list[Proxy] = []
        self._connection: psycopg.Connection[Any] | None = None

    def query(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Query the server directly, not through a proxy. Retry while the server restarts."""
        deadline = time.monotonic() + QUERY_SECONDS
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = psycopg.connect(self.url, autocommit=True, application_name="environment")
                cursor = self._connection.execute(query, parameters or None)
                return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError as error:
                self.forget_connection()
                if time.monotonic() > deadline:
                    raise WaitTimeout(f"The server does not answer: {error}") from error
                time.sleep(CHECK_SECONDS)

    def forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait_for(self, condition: Callable[[], T], what: str) -> T:
        """Return the condition's value once it is true."""
        deadline = (began := time.monotonic()) + PATIENCE_SECONDS
        while not (value := condition()):
            if (now := time.monotonic()) > deadline:
                raise WaitTimeout(f"{what}: not within {PATIENCE_SECONDS:g} s; {self.states()}; see {self.folder}")
            self.wait(max(CHECK_SECONDS, min(REST * (now - began), 0.1)))
            began = time.monotonic()
        return value

    def states(self) -> str:
        """Describe the tasks, for an error."""
        raise NotImplementedError

    @cached_property
    def proxy(self) -> Proxy:
        """The proxy that processes share."""
        return self.new_proxy()

    def new_proxy(self) -> Proxy:
        self._proxies.append(Proxy(self.cluster.data / ".s.PGSQL.5432"))
        return self._proxies[-1]

    def close(self) -> None:
        self.forget_connection()
        for proxy in self._proxies:
            proxy.close()
