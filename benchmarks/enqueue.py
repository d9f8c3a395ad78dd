"""Measure how many jobs a second one process enqueues: one by one in autocommit, and in bulk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import cluster
from benchmarks.arena import Arena
from benchmarks.contestants import Contestant
from benchmarks.rounds import Sample

BULK = 1_000
BARE = """
    CREATE TABLE IF NOT EXISTS bare (
        id bigserial PRIMARY KEY, queue text NOT NULL, payload jsonb NOT NULL, enqueued_at timestamptz DEFAULT now()
    )
"""
INSERT = "INSERT INTO bare (queue, payload) VALUES (%s, %s)"


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Enqueue jobs of a contestant. verb: "one" or "bulk" (see benchmarks.produce)."""

    arena: Arena
    contestant: Contestant
    verb: str
    count: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> Sample:
        self.arena.check(self.contestant)
        database = self.arena.database(self.contestant.peer)
        database.clear()
        database.settle()
        return measured(self.arena, self.count, lambda: database.produce(self.verb, self.count, self.environment))


@dataclass(frozen=True, slots=True)
class Bare:
    """Insert rows into a plain table, for comparison: one by one, by the thousand, or with COPY."""

    arena: Arena
    how: Callable[[psycopg.Connection[Any], int], None]
    count: int

    def __call__(self) -> Sample:
        with psycopg.connect(self.arena.server.url, autocommit=True) as connection:
            connection.execute(BARE)
            connection.execute("TRUNCATE bare")
            connection.execute("CHECKPOINT")
            self.how(connection, 10)

            def act() -> float:
                began_at = time.perf_counter()
                self.how(connection, self.count)
                return time.perf_counter() - began_at

            return measured(self.arena, self.count, act)


def measured(arena: Arena, count: int, act: Callable[[], float]) -> Sample:
    before = cluster.cpu_seconds(arena.server)
    seconds = act()
    # Most CPU time of the producer would be that of its start.
    return Sample(
        count=count,
        seconds=seconds,
        worker_seconds=0.0,
        server_seconds=cluster.cpu_seconds(arena.server) - before,
    )


def insert_each(connection: psycopg.Connection[Any], count: int) -> None:
    for number in range(count):
        connection.execute(INSERT, ["default", f"[{number}]"])


def insert_many(connection: psycopg.Connection[Any], count: int) -> None:
    for start in range(0, count, BULK):
        numbers = range(start, min(start + BULK, count))
        values = sql.SQL(", ").join([sql.SQL("(%s, %s)")] * len(numbers))
        parameters = [part for number in numbers for part in ("default", f"[{number}]")]
        connection.execute(sql.SQL("INSERT INTO bare (queue, payload) VALUES {}").format(values), parameters)


def copy(connection: psycopg.Connection[Any], count: int) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY bare (queue, payload) FROM STDIN") as rows:
        for number in range(count):
            rows.write_row(["default", f"[{number}]"])
