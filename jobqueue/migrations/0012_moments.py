"""
PostgreSQL only: moments that Python cannot read, infinity among them, are refused.

First the rows that have one are given another: an executor could not write them any more. Those that somebody inserts
between that and the constraint are so at once. Then all is validated.
"""

from importlib import import_module

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from jobqueue.migrations import _online

sql = import_module("jobqueue.migrations.0003_sql_functions")


def each(name: str, *, backwards: str | None = None) -> list[migrations.RunPython]:
    """Run the statements of a file in transactions of their own: no table is locked while another is waited for."""
    forwards = [step(text) for text in sql.read(name).split("\n\n")]
    back = [step(text) for text in sql.read(backwards).split("\n\n")] if backwards else []
    back += [migrations.RunPython.noop] * (len(forwards) - len(back))
    return [_online.RunPython(*pair) for pair in zip(forwards, back, strict=True)]


def step(text: str) -> sql.Step:
    def run(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
        if schema_editor.connection.vendor == "postgresql":
            sql.execute(schema_editor, text)

    return run


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0011_enqueue_function")]

    operations = [
        *each("moments_fitted"),
        *each("moments", backwards="moments_drop"),
        *each("moments_fitted"),
        *each("moments_validated"),
    ]
