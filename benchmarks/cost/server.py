"""What PostgreSQL counts: statements, write-ahead log, index entries, buffers."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any, NamedTuple

import psycopg

from tools.postgres import Cluster
from tools.postgres_programs import run

SETTINGS = {"log_statement": "all", "log_connections": "on", "autovacuum": "off", "fsync": "off"}
STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): (.*)")
AUTHORIZED = re.compile(r"\[(\d+)\].*LOG:  connection authorized")
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
COUNTERS = "SELECT blks_hit + blks_read, tup_inserted + tup_updated FROM pg_stat_database WHERE datname = 'postgres'"
RECORDS = re.compile(r"(?m)^(\w+/\S+) +(\d+) \([^)]*\) +(\d+) \(")  # of pg_waldump: kind, number, bytes
INDEX_ENTRIES = ("Btree/INSERT_LEAF", "Btree/INSERT_POST", "Btree/SPLIT_L", "Btree/SPLIT_R")
SECONDS = 60.0  # until the sessions that did the work have ended


class Mark(NamedTuple):
    """What a server had counted at one moment."""

    log_size: int
    wal_position: str
    buffers: int
    row_versions: int


class Server:
    """
    Reads the counters of a cluster, between two pieces of work.

    It is connected to another database, so that its own statements are not in the counters. A session publishes what
    it counted when it ends.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        options = "-c log_statement=none"
        self._connection = psycopg.connect(cluster.url_for("template1"), options=options, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def _row(self, statement: str) -> tuple[Any, ...]:
        row = self._connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row

    def mark(self) -> Mark:
        """Wait until all other sessions have ended. Return what the server has counted so far."""
        deadline = time.monotonic() + SECONDS
        while self._row(OTHERS) != (0,):
            if time.monotonic() > deadline:
                raise RuntimeError("A session of the measured work has not ended.")
            time.sleep(0.01)
        (position,) = self._row("SELECT pg_current_wal_insert_lsn()::text")
        return Mark(self._cluster.log.stat().st_size, position, *self._row(COUNTERS))

    def log_since(self, mark: Mark) -> str:
        with self._cluster.log.open("rb") as log:
            log.seek(mark.log_size)
            return log.read().decode(errors="replace")

    def sessions_since(self, mark: Mark) -> list[int]:
        """Return the process ids of the sessions that began since a mark."""
        return [int(pid) for pid in AUTHORIZED.findall(self.log_since(mark))]

    def counts_since(self, mark: Mark) -> dict[str, int]:
        """Return what the server counted since a mark."""
        statements = STATEMENT.findall(self.log_since(mark))
        now = self.mark()
        self._row("SELECT pg_logical_emit_message(true, '', '')::text")  # flushes what was written before
        records, sizes = self._records(mark.wal_position, now.wal_position)
        return {
            "statements": len(statements),
            "commits": records["Transaction/COMMIT"],
            "row versions": now.row_versions - mark.row_versions,
            "index entries": sum(records[name] for name in INDEX_ENTRIES),
            "buffers": now.buffers - mark.buffers,
            "WAL records": records.total(),
            "WAL bytes": sizes.total(),
        }

    def _records(self, start: str, end: str) -> tuple[Counter[str], Counter[str]]:
        """
        Count the records between two positions of the write-ahead log, and their bytes, by their kind.

        Without the images of whole pages: how many there are depends on which pages the last checkpoint wrote.
        """
        folder = str(self._cluster.data / "pg_wal")
        answer = run("pg_waldump", "--path", folder, "--start", start, "--end", end, "--stats=record")
        if answer.returncode:
            raise RuntimeError(f"pg_waldump failed:\n{answer.stdout}")
        lines = RECORDS.findall(answer.stdout)
        counts = Counter({name: int(count) for name, count, _ in lines})
        return counts, Counter({name: int(size) for name, _, size in lines})
