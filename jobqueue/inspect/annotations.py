"""Small facts that the database takes out of JSON columns, so that a list need not read them whole."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Func, IntegerField, TextField

SMALL_BYTES = 2000  # what lies in the row itself, in PostgreSQL


class LastError(Func):
    """
    A text of the newest entry of `errors`; null where there is none.

    Other databases than PostgreSQL and SQLite answer null: their lists do without.
    """

    output_field = TextField()

    def __init__(self, name: str, **extra: Any) -> None:
        super().__init__(F("errors"), **extra)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        return "NULL", []

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return f"({column} -> -1 ->> %s)", (*params, self.name)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return f"JSON_EXTRACT({column}, %s)", (*params, f"$[#-1].{self.name}")


class Length(Func):
    """How many entries a JSON list has; null where the row holds something else."""

    output_field = IntegerField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        return "NULL", []

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return (
            f"CASE WHEN JSONB_TYPEOF({column}) = 'array' THEN JSONB_ARRAY_LENGTH({column}) END",
            (*params, *params),
        )

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return f"JSON_ARRAY_LENGTH({column})", params


class Small(Func):
    """A JSON column as text; null where the row holds more than a list should read."""

    output_field = TextField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        return "NULL", []

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return f"CASE WHEN PG_COLUMN_SIZE({column}) <= {SMALL_BYTES} THEN {column}::text END", (*params, *params)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return f"CASE WHEN LENGTH({column}) <= {SMALL_BYTES} THEN {column} END", (*params, *params)


def facts() -> dict[str, Any]:
    """Annotations of a row of the list. `words.headline` makes a line of error_class and error_message."""
    return {
        "error_class": LastError("exception_class_path"),
        "error_message": LastError("message"),
        "starts": Length(F("worker_ids")),
    }
