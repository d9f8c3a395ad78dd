"""
Objects that PostgreSQL has beside the tables: functions, comments, storage parameters, a constraint, an index and
statistics.

Migrations run the files of this folder. `install()` runs them after `migrate` where tables came without them: from the
models (MIGRATION_MODULES, pytest --no-migrations), or from other migrations. So a file may run again at any time. It is
never split into versions: a migration that changes a file runs it again. What a new file or a new mark makes, add it to
FILES and to missing.sql.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from django.apps.registry import Apps
from django.db import transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

FOLDER = Path(__file__).parent
# Files with one function each, jobqueue_<file>.
FUNCTIONS = ("create_task", "send_to_task", "enqueue", "enqueue_plain", "record")
FILES = (
    "storage",
    "room",
    "status",
    "tags",
    *FUNCTIONS,
    "comments",
    "comments_of_code",
    "comments_of_limits",
    "heartbeats",
    "journal",
)
# The functions name the schema of the tables, which the caller's search_path may lack.
SCHEMA_OF_TABLES = """
SELECT quote_ident(nspname) FROM pg_namespace JOIN pg_class ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('jobqueue_task')
"""


def read_file(name: str) -> str:
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def run_files(*names: str) -> Callable[[Apps, BaseDatabaseSchemaEditor], None]:
    """Return an operation for RunPython. It does nothing on other databases, or if a router keeps our tables away."""

    def run(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
        _execute(schema_editor.connection, names, schema_editor.execute)

    return run


def missing(connection: Any) -> list[str]:
    """
    Return the objects that the files install and a PostgreSQL database with our tables lacks, such as
    "jobqueue_enqueue()".
    """
    with connection.cursor() as cursor:
        cursor.execute(read_file("missing"), {"functions": [f"jobqueue_{name}" for name in FUNCTIONS]})
        return [name for (name,) in cursor.fetchall()]


def columns(connection: Any, tables: Collection[str]) -> list[tuple[str, str, bool]]:
    """Return table and name of each column, and whether an INSERT may leave it out."""
    with connection.cursor() as cursor:
        cursor.execute(read_file("columns"), {"tables": list(tables)})
        rows: list[tuple[str, str, bool]] = cursor.fetchall()
        return rows


def install(connection: Any) -> None:
    """Run the files if anything is missing. Locks: see storage.sql; none if nothing is missing."""
    if missing(connection):
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            _execute(connection, FILES, cursor.execute)


def _execute(connection: Any, names: tuple[str, ...], execute: Callable[..., Any]) -> None:
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(SCHEMA_OF_TABLES)
        rows = cursor.fetchall()
    for name in names if rows else ():
        # None: no parameters, so that a percent sign in the SQL stays what it is.
        execute(read_file(name).replace("{schema}", rows[0][0]), None)
