"""Which tables and migrations of ours a database lacks."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from django.apps import apps
from django.db import ProgrammingError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

APP = "jobqueue"


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
    module, _ = MigrationLoader.migrations_module(APP)
    if module is None:
        return []
    names = {found.name for found in pkgutil.iter_modules(import_module(module).__path__) if found.name[0] not in "_~"}
    try:
        applied = MigrationRecorder(connections[database]).applied_migrations()
    except ProgrammingError:
        return []
    return sorted(names - {name for app, name in applied if app == APP})
