"""The database's clock, the only one that due times, heartbeats and leases are compared with."""

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


class Clock(Func):
    """
    The moment the statement writes, not the one its transaction began.

    After a lock wait of 1.8 s a beat written with now() was 1.8 s old already. It also moves inside
    a test's transaction.
    """

    template = "CURRENT_TIMESTAMP(6)"
    output_field = DateTimeField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="CLOCK_TIMESTAMP()", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # As long as what Django writes: times are compared as text, and .5 comes before .500000.
        zone = ", 'LOCALTIME'" if connection.timezone is None else ""
        # Twice doubled: with DEBUG on, Django formats the statement once more.
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW'{zone})"
        return self.as_sql(compiler, connection, template=template, **context)


class Bound(Clock):
    """
    The same as something to compare with: read once per statement.

    PostgreSQL searches no index by a function that may change from row to row: beside 30,000 tasks for
    tomorrow, looking for a due one read them all.
    """

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(SELECT CLOCK_TIMESTAMP())", **context)


def from_now(seconds: float) -> Expression:
    """Give the moment so many seconds from the database's now, to be written; negative means ago."""
    return ExpressionWrapper(Clock() + Value(timedelta(seconds=seconds), DurationField()), DateTimeField())


def bound(seconds: float = 0.0) -> Expression:
    """Give the moment so many seconds from the database's now, to be compared with; negative means ago."""
    return ExpressionWrapper(Bound() + Value(timedelta(seconds=seconds), DurationField()), DateTimeField())


def rank_from(moment: Any, aging_seconds: float) -> Expression:
    """Order of claiming of a task ready at `moment`: a point of priority is worth `aging_seconds` of waiting."""
    # Django multiplies durations by an IntegerField, on SQLite by no smaller one.
    priority = ExpressionWrapper(F("priority"), IntegerField())
    worth = Value(timedelta(seconds=aging_seconds), DurationField())
    return ExpressionWrapper(moment - ExpressionWrapper(priority * worth, DurationField()), DateTimeField())


def written(moment: datetime) -> str:
    """Write a moment of the database as an error's `at`; without USE_TZ it is one of the site's zone."""
    aware = make_aware(moment, get_default_timezone()) if is_naive(moment) else moment
    return aware.astimezone(UTC).isoformat(timespec="milliseconds")


def read_clock(database: str) -> datetime:
    """Read the clock of a database alias."""
    query = Query(None)
    query.add_annotation(Clock(), "now")
    ((now,),) = query.get_compiler(using=database).results_iter()
    return now  # type: ignore[no-any-return]
