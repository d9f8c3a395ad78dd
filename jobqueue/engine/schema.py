"""Whether a database has the tables that this code needs."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from django.apps import apps
from django.db import ProgrammingError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

APP = "jobqueue"


def missing_tables(database: str) -> list[str]:
    """Name the tables of ours that a database does not have."""
    there = set(connections[database].introspection.table_names())
    ours = (model._meta.db_table for model in apps.get_app_config(APP).get_models())
    return sorted(set(ours) - there)


def missing_migrations(database: str) -> list[str]:
    """
    Name the migrations of ours that a database has not seen.

    None where MIGRATION_MODULES leaves us out, or the list of what was applied is not for this role to read.
    """
    module, _ = MigrationLoader.migrations_module(APP)
    if module is None:
        return []
    names = {found.name for found in pkgutil.iter_modules(import_module(module).__path__) if found.name[0] not in "_~"}
    try:
        applied = MigrationRecorder(connections[database]).applied_migrations()
    except ProgrammingError:
        return []
    return sorted(names - {name for app, name in applied if app == APP})
