"""Small values that the database extracts from JSON columns, so that a list need not read the columns."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import F, Func, IntegerField, TextField

SMALL_BYTES = 2000  # stored in the row itself, in PostgreSQL


class JsonFunc(Func):
    """A function of one JSON column, written for PostgreSQL and SQLite. Other databases return NULL."""

    postgresql: ClassVar[str]
    sqlite: ClassVar[str]

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        return "NULL", []

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self._fill(self.postgresql, compiler)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self._fill(self.sqlite, compiler)

    def _fill(self, template: str, compiler: Any) -> Any:
        column, params = compiler.compile(self.source_expressions[0])
        return template.format(column=column), [*params] * template.count("{column}")


class LastErrorClass(JsonFunc):
    """The class of the newest entry of `errors`; NULL if there is none."""

    output_field = TextField()
    postgresql = "({column} -> -1 ->> 'exception_class_path')"
    sqlite = "JSON_EXTRACT({column}, '$[#-1].exception_class_path')"


class LastErrorMessage(JsonFunc):
    """The message of the newest entry of `errors`; NULL if there is none."""

    output_field = TextField()
    postgresql = "({column} -> -1 ->> 'message')"
    sqlite = "JSON_EXTRACT({column}, '$[#-1].message')"


class Length(JsonFunc):
    """The number of entries of a JSON list; NULL if the row has something else."""

    output_field = IntegerField()
    postgresql = "CASE WHEN JSONB_TYPEOF({column}) = 'array' THEN JSONB_ARRAY_LENGTH({column}) END"
    sqlite = "JSON_ARRAY_LENGTH({column})"


class Small(JsonFunc):
    """A JSON column as text; NULL if it is too large for a list to read."""

    output_field = TextField()
    postgresql = f"CASE WHEN PG_COLUMN_SIZE({{column}}) <= {SMALL_BYTES} THEN {{column}}::text END"
    sqlite = f"CASE WHEN LENGTH({{column}}) <= {SMALL_BYTES} THEN {{column}} END"


def row_annotations() -> dict[str, Any]:
    """Return the annotations of a row of the task list."""
    return {
        "error_class": LastErrorClass(F("errors")),
        "error_message": LastErrorMessage(F("errors")),
        "starts": Length(F("worker_ids")),
    }
