"""Which tables, migrations and SQL functions of ours a database lacks."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from shlex import quote

from django.apps import apps
from django.db import DatabaseError, ProgrammingError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from jobqueue.exceptions import NotMigrated
from jobqueue.migrations import sql

APP = "jobqueue"
# PostgreSQL's undefined function, table, column and schema.
UNDEFINED = ("42883", "42P01", "42703", "3F000")
UNDEFINED_IN_SQLITE = ("no such table", "no such column", "has no column named")


def missing_tables(database: str) -> list[str]:
    """Return the names of our tables that the database does not have."""
    existing = set(connections[database].introspection.table_names())
    tables = {model._meta.db_table for model in apps.get_app_config(APP).get_models()}
    return sorted(tables - existing)


def missing_migrations(database: str) -> list[str]:
    """
    Return the names of our migrations that are not applied to the database.

    The list is empty if MIGRATION_MODULES disables ours, or if the role may not read django_migrations.
    """
    names, applied = known_migrations(), applied_migrations(database)
    return [] if applied is None else sorted(names - applied)


def known_migrations() -> set[str]:
    """Return the names of our migrations, none if MIGRATION_MODULES disables them."""
    module, _ = MigrationLoader.migrations_module(APP)
    if module is None:
        return set()
    found = pkgutil.iter_modules(import_module(module).__path__)
    return {one.name for one in found if not one.ispkg and one.name[0] not in "_~"}


def applied_migrations(database: str) -> set[str] | None:
    """Return the names of our migrations that are applied. None: the role may not read django_migrations."""
    try:
        applied = MigrationRecorder(connections[database]).applied_migrations()
    except ProgrammingError:
        return None
    return {name for app, name in applied if app == APP}


def missing_objects(database: str) -> list[str]:
    """Return what migrations/sql installs and the database lacks. SQLite needs none of it."""
    connection = connections[database]
    return sql.missing(connection) if connection.vendor == "postgresql" else []


def schema_problem(database: str) -> str:
    """Return what the database lacks and what to do, "" if nothing."""
    kinds = {"tables": missing_tables, "migrations": missing_migrations, "functions": missing_functions}
    for kind, missing in kinds.items():
        if names := missing(database):
            return f"The database {database!r} lacks {kind} ({', '.join(names)}). Run: {migrate_command(database)}"
    return ""


def missing_functions(database: str) -> list[str]:
    return [name for name in missing_objects(database) if name.endswith("()")]


def migrate_command(database: str) -> str:
    """Return the command that makes our tables. Without migrations, `migrate` makes tables from the models."""
    what = APP if known_migrations() else "--run-syncdb"
    return f"manage.py migrate {what} --database {quote(database)}"


def check_migrated(error: DatabaseError, database: str) -> None:
    """Raise NotMigrated if the error says that the database lacks a table, column or function of ours."""
    text, *_ = str(error).splitlines() or [""]  # further lines name the functions that called a trigger of the site
    code = getattr(error.__cause__, "sqlstate", None)
    is_undefined = code in UNDEFINED or any(words in text for words in UNDEFINED_IN_SQLITE)
    found = re.search(r"\bjobqueue_\w+", text)
    if found is None or not is_undefined:
        return
    *_, newest = sorted(known_migrations()) or [""]
    in_migration = f'; in a data migration, add ("{APP}", "{newest}") to its dependencies' if newest else ""
    raise NotMigrated(
        f"The database {database!r} lacks {found[0]} of django-jobqueue, or has another version of it: run "
        f"{migrate_command(database)}{in_migration}."
    ) from error
