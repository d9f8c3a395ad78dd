"""The last error of many tasks, without reading all their errors."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Func, TextField


class LastError(Func):
    """
    A text of the newest entry of `errors`, taken out by the database; null where there is none.

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


def last_error() -> dict[str, Any]:
    """Annotations that `words.headline` makes a line of."""
    return {"error_class": LastError("exception_class_path"), "error_message": LastError("message")}
