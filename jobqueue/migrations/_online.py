"""
Schema changes beside a running queue: on PostgreSQL no statement stops it for longer than a moment.

ALTER TABLE waits for every open reader, and whoever comes after waits behind it. So each change is a transaction of
its own that gives up after LOCK_SECONDS and tries again; indexes are built CONCURRENTLY. A migration that was killed
halfway is run again: what is there already is left as it is. Elsewhere, and inside somebody's transaction, the plain
operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import OperationalError, migrations, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

LOCK_SECONDS = 0.5
PAUSE_SECONDS = 1.0  # for whoever waited behind us
LOCK_NOT_AVAILABLE = "55P03"
CONSTRAINT = "SELECT 1 FROM pg_constraint WHERE conname = %s AND conrelid = to_regclass(%s)"
INDEX = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"


def is_online(editor: BaseDatabaseSchemaEditor) -> bool:
    return editor.connection.vendor == "postgresql" and not editor.connection.in_atomic_block


def patiently(editor: BaseDatabaseSchemaEditor, change: Callable[[], None]) -> None:
    """Make a change in a transaction of its own, again and again until its locks are free."""
    if editor.collect_sql:  # only shown, by sqlmigrate
        change()
        return
    connection = editor.connection
    while True:
        try:
            with transaction.atomic(using=connection.alias):
                with connection.cursor() as cursor:
                    cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{LOCK_SECONDS * 1000:.0f}ms"])
                change()
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


class Online(Operation):
    """An operation of Django's, tried again while somebody reads; skipped where `is_done`."""

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        forwards = super().database_forwards
        if not is_online(schema_editor):
            forwards(app_label, schema_editor, from_state, to_state)
        elif schema_editor.collect_sql or not self.is_done(app_label, schema_editor, to_state):
            patiently(schema_editor, lambda: forwards(app_label, schema_editor, from_state, to_state))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        backwards = super().database_backwards
        if is_online(schema_editor):
            patiently(schema_editor, lambda: backwards(app_label, schema_editor, from_state, to_state))
        else:
            backwards(app_label, schema_editor, from_state, to_state)

    def is_done(self, app_label: str, editor: Any, to_state: Any) -> bool:
        return False


class AddField(Online, migrations.AddField):
    def is_done(self, app_label: str, editor: Any, to_state: Any) -> bool:
        model = to_state.apps.get_model(app_label, self.model_name)
        with editor.connection.cursor() as cursor:
            there = editor.connection.introspection.get_table_description(cursor, model._meta.db_table)
        return model._meta.get_field(self.name).column in [column.name for column in there]


class AddConstraint(Online, migrations.AddConstraint):
    def is_done(self, app_label: str, editor: Any, to_state: Any) -> bool:
        table = to_state.apps.get_model(app_label, self.model_name)._meta.db_table
        with editor.connection.cursor() as cursor:
            cursor.execute(CONSTRAINT, [self.constraint.name, editor.quote_name(table)])
            return cursor.fetchone() is not None


class RemoveIndex(Online, migrations.RemoveIndex):
    pass


class RunPython(Online, migrations.RunPython):
    """Code that may be run twice."""


class Index(Online):
    """CREATE INDEX CONCURRENTLY waits for readers, but nobody waits for it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        editor = schema_editor
        if not is_online(editor):
            super(Online, self).database_forwards(app_label, editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        subject = getattr(self, "index", None) or self.constraint
        name = editor.quote_name(subject.name)
        with editor.connection.cursor() as cursor:
            cursor.execute(INDEX, [name])
            found = None if editor.collect_sql else cursor.fetchone()
        if found == (True,):
            return
        if found == (False,):  # left by a migration that was killed
            editor.execute(f"DROP INDEX CONCURRENTLY {name}", None)
        sql = str(subject.create_sql(model, editor))
        editor.execute(sql.replace("INDEX", "INDEX CONCURRENTLY", 1), None)


class AddIndex(Index, migrations.AddIndex):
    pass


class AddUniqueConstraint(Index, migrations.AddConstraint):
    """With a condition: an index, as far as PostgreSQL is concerned."""
