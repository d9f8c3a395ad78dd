"""The database's clock. All due times and heartbeats use it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    Expression,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    Value,
)
from django.db.models.sql import Query
from django.utils.timezone import get_default_timezone, is_naive, make_aware

# A later time in a row was written before the clock was set back.
AHEAD_SECONDS = 1.0


class Clock(Func):
    """
    The current time, for a column.

    Not now(), which is the start of the transaction: after a lock wait of 1.8 s, a heartbeat was 1.8 s old.
    """

    template = "CURRENT_TIMESTAMP(6)"
    output_field = DateTimeField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="CLOCK_TIMESTAMP()", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Six digits, as Django writes: SQLite compares times as text, and .5 is less than .500000.
        zone = ", 'LOCALTIME'" if connection.timezone is None else ""
        # Doubled twice: with DEBUG=True, Django formats the statement once more.
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW'{zone})"
        return self.as_sql(compiler, connection, template=template, **context)


class ClockOfStatement(Clock):
    """
    The current time, for a comparison: read once per statement.

    PostgreSQL uses no index for a function that may change from row to row, and read all of 30,000 scheduled tasks.
    """

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(SELECT CLOCK_TIMESTAMP())", **context)


def clock_to_store(*, after: float) -> Expression:
    """Return the time in `after` seconds, for a column."""
    return ExpressionWrapper(Clock() + Value(timedelta(seconds=after), DurationField()), DateTimeField())


def clock_to_compare(*, after: float = 0.0) -> Expression:
    """Return the time in `after` seconds, for a comparison."""
    return ExpressionWrapper(ClockOfStatement() + Value(timedelta(seconds=after), DurationField()), DateTimeField())


def rank_from(moment: Any, aging_seconds: float) -> Expression:
    """Return the rank of a task that is ready at `moment`: one point of priority is worth `aging_seconds`."""
    # On SQLite, Django multiplies durations by an IntegerField only.
    priority = ExpressionWrapper(F("priority"), IntegerField())
    worth = Value(timedelta(seconds=aging_seconds), DurationField())
    return ExpressionWrapper(moment - ExpressionWrapper(priority * worth, DurationField()), DateTimeField())


def iso_utc(moment: datetime) -> str:
    """Format a time for the `at` of an error. Without USE_TZ it is in the site's time zone."""
    aware = make_aware(moment, get_default_timezone()) if is_naive(moment) else moment
    return aware.astimezone(UTC).isoformat(timespec="milliseconds")


def read_clock(database: str) -> datetime:
    """Return the current time of a database."""
    query = Query(None)
    query.add_annotation(Clock(), "now")
    ((now,),) = query.get_compiler(using=database).results_iter()
    return now  # type: ignore[no-any-return]
