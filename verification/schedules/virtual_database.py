"""A database with a clock that the simulation sets, and the record that its triggers make of tasks and ticks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from django.core.management import call_command
from django.db import connections

HERE: Final = Path(__file__).parent
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
SIDE: Final = "schedules_side"  # a second connection to PostgreSQL
READ: Final = "DELETE FROM {} RETURNING id, source, operation, before, after"
# A statement waits for the transaction that a frozen executor has left open, or briefly for autovacuum, which cuts off
# the empty end of a table.
SESSION: Final = "SET search_path = virtual_time, pg_catalog, public; SET lock_timeout = '200ms'"


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change of a row, in the order of `id`: a task's status, a tick, or the waiting tick of a schedule."""

    id: int
    source: str
    operation: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


class VirtualDatabase(Protocol):
    @property
    def aliases(self) -> Sequence[str]:
        """Django's names of its connections. A transaction may stay open on the second one."""

    def set_clock(self, moment: datetime) -> None:
        """Set the time that the next reading of the clock exceeds by a microsecond."""

    def read_clock(self) -> datetime:
        """Return the current time."""

    def read_entries(self) -> list[RecordedChange]:
        """Return what committed transactions have changed since the last call."""


class VirtualPostgres:
    """PostgreSQL: the clock_timestamp() of a schema hides the server's."""

    aliases = ("default", SIDE)

    def set_clock(self, moment: datetime) -> None:
        self._execute("SELECT setval('virtual_time.microseconds', %s)", [(moment - EPOCH) // MICROSECOND])

    def read_clock(self) -> datetime:
        (moment,) = self._execute("SELECT clock_timestamp()")[0]
        return moment  # type: ignore[no-any-return]

    def read_entries(self) -> list[RecordedChange]:
        return as_entries(self._execute(READ.format("virtual_time.entry")))

    def _execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with connections["default"].cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())


class VirtualSqlite:
    """SQLite in memory: a function that hides strftime()."""

    aliases = ("sqlite",)

    def __init__(self) -> None:
        self._now = EPOCH

    def set_clock(self, moment: datetime) -> None:
        self._now = moment

    def read_clock(self) -> datetime:
        self._now += MICROSECOND
        return self._now

    def strftime(self, _format: str, *arguments: str) -> str:
        assert arguments == ("NOW",)
        return self.read_clock().strftime("%Y-%m-%d %H:%M:%S.%f")

    def read_entries(self) -> list[RecordedChange]:
        with connections["sqlite"].cursor() as cursor:
            cursor.execute(READ.format("entry"))
            return as_entries(cursor.fetchall())


def as_entries(rows: Sequence[tuple[Any, ...]]) -> list[RecordedChange]:
    def read(value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value or {}

    return sorted((RecordedChange(*row[:3], *map(read, row[3:])) for row in rows), key=lambda entry: entry.id)


def moment_of(value: str) -> datetime:
    """Return a time as triggers write it."""
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@contextmanager
def virtual_postgres() -> Iterator[VirtualDatabase]:
    """Hide the clock of the default database from the connections of this process."""
    connections.databases.setdefault(SIDE, connections.databases["default"].copy())
    with connections["default"].cursor() as cursor:
        cursor.execute((HERE / "virtual_clock.sql").read_text())
    try:
        for alias in VirtualPostgres.aliases:
            with connections[alias].cursor() as cursor:
                cursor.execute(SESSION)
        yield VirtualPostgres()
    finally:
        connections[SIDE].close()
        connections["default"].close()
        with connections["default"].cursor() as cursor:
            cursor.execute("DROP SCHEMA virtual_time CASCADE")  # and the triggers that use it


@contextmanager
def virtual_sqlite() -> Iterator[VirtualDatabase]:
    """Make a new database in memory, and hide its clock."""
    settings = connections.databases["sqlite"]
    connections["sqlite"].close()
    before, settings["NAME"] = settings["NAME"], ":memory:"
    try:
        call_command("migrate", database="sqlite", verbosity=0)
        database, connection = VirtualSqlite(), connections["sqlite"]
        raw = connection.connection
        raw.executescript((HERE / "record_sqlite.sql").read_text())
        raw.create_function("strftime", -1, database.strftime)
        yield database
    finally:
        settings["NAME"] = before
        del connections["sqlite"]
