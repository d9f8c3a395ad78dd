"""Find the tables, migrations and SQL functions of ours that a database lacks."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from shlex import quote
from typing import Any

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
    return sorted({*current_models()} - existing)


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
    modules = pkgutil.iter_modules(import_module(module).__path__)
    return {info.name for info in modules if not info.ispkg and info.name[0] not in "_~"}


def applied_migrations(database: str) -> set[str] | None:
    """Return the names of our migrations that are applied. None: the role may not read django_migrations."""
    try:
        applied = MigrationRecorder(connections[database]).applied_migrations()
    except ProgrammingError:
        return None
    return {name for app, name in applied if app == APP}


def missing_objects(database: str) -> list[str]:
    """Return the objects that migrations/sql installs and the database lacks. SQLite needs none of them."""
    connection = connections[database]
    return sql.missing(connection) if connection.vendor == "postgresql" else []


def schema_problem(database: str) -> str:
    """
    Describe the objects that the database lacks and how to add them; "" if none.

    It must have what its applied migrations make. A version before the first release had migrations of the same names
    that made other tables, which no migration can repair. Columns of newer code are no problem: they have defaults.
    """
    available, applied = known_migrations(), applied_migrations(database)
    outdated = sorted(available - applied) if applied is not None else []
    is_newer = bool(applied and applied - available)
    made = _models_after(available & applied) if applied and outdated else current_models()
    here, command = f"The database {database!r}", migrate_command(database)
    missing = missing_tables(database)
    to_create = [] if applied and outdated else missing  # outdated migrations create theirs
    should_exist = bool(available and applied)  # otherwise the tables may not come from migrations
    gone = sorted({*missing} & {*made}) if should_exist else []
    lacking, foreign = changed_columns(database, made, current_models())
    if is_newer and (gone or lacking):
        return f"{here} is newer than this code: it lacks {', '.join(gone or lacking)}. Deploy newer code."
    if foreign and not is_newer:
        return f"{here} has columns that are not ours ({', '.join(foreign)}). {_repair(command)}"
    if gone or lacking:
        kind = "tables" if gone else "columns"
        return f"{here} lacks {kind} ({', '.join(gone or lacking)}). {_repair(command)}"
    for kind, names in (("tables", to_create), ("migrations", outdated), ("functions", missing_functions(database))):
        if names:
            return f"{here} lacks {kind} ({', '.join(names)}). Run: {command}"
    return ""


def current_models() -> dict[str, Any]:
    """Return our models by table."""
    return {model._meta.db_table: model for model in apps.get_app_config(APP).get_models()}


def _models_after(migrations: Collection[str]) -> dict[str, Any]:
    """Return our models by table as they were after some of our migrations."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    state = loader.project_state([(APP, name) for name in sorted(migrations)])
    return {model._meta.db_table: model for model in state.apps.get_app_config(APP).get_models()}


def _repair(command: str) -> str:
    return (
        "Its migrations make other tables: people have changed these, or a version before the first release made "
        f"them. Drop all tables and functions of {APP}, delete its rows in django_migrations, and run: {command} "
        "(docs/deploy.md, Tables that migrate cannot repair)"
    )


def changed_columns(database: str, models: Mapping[str, Any], newest: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """
    Return the columns that our tables lack, and those of others that an INSERT would have to name.

    models: those of the applied migrations. newest: those of all migrations. While `migrate` runs, a migration may have
    changed the tables already, and not be recorded yet.
    """
    lacking, foreign = [], []
    for table, columns in read_columns(database, sorted(models)).items():
        ours, later = columns_of(models[table]), columns_of(newest.get(table))
        lacking += [f"{table}.{name}" for name in sorted((ours & later) - {*columns})]
        foreign += [f"{table}.{name}" for name in sorted({*columns} - ours - later) if not columns[name]]
    return lacking, foreign


def columns_of(model: Any) -> set[str]:
    return {str(field.column) for field in model._meta.local_concrete_fields} if model is not None else set()


def read_columns(database: str, tables: Collection[str]) -> dict[str, dict[str, bool]]:
    """Return the columns of each table that exists, and whether an INSERT may leave each out."""
    connection = connections[database]
    if connection.vendor == "postgresql":
        rows = sql.columns(connection, tables)
    else:
        with connection.cursor() as cursor:
            existing = {*connection.introspection.table_names(cursor)} & {*tables}
            rows = [
                (table, column.name, bool(column.null_ok or column.default is not None))
                for table in existing
                for column in connection.introspection.get_table_description(cursor, table)
            ]
    columns: dict[str, dict[str, bool]] = {}
    for table, name, is_optional in rows:
        columns.setdefault(table, {})[name] = is_optional
    return columns


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
    is_undefined = code in UNDEFINED or any(message in text for message in UNDEFINED_IN_SQLITE)
    match = re.search(r"\bjobqueue_\w+", text)
    if match is None or not is_undefined:
        return
    *_, newest = sorted(known_migrations()) or [""]
    in_migration = f'; in a data migration, add ("{APP}", "{newest}") to its dependencies' if newest else ""
    raise NotMigrated(
        f"The database {database!r} lacks {match[0]} of django-jobqueue, or has another version of it: run "
        f"{migrate_command(database)}{in_migration}."
    ) from error
