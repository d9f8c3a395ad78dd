"""PostgreSQL only: functions for triggers and other languages, and comments for whoever has only psql."""

import re
from collections.abc import Callable
from pathlib import Path

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

Step = Callable[[Apps, BaseDatabaseSchemaEditor], None]
COMMENT = re.compile(r"^(COMMENT ON \w+ \S+) IS\b", re.MULTILINE)


def execute(schema_editor: BaseDatabaseSchemaEditor, text: str) -> None:
    """Run SQL, with {schema} for the one that holds the tables, which the callers' search_path need not."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT quote_ident(nspname) FROM pg_namespace JOIN pg_class ON pg_namespace.oid = relnamespace"
            " WHERE pg_class.oid = to_regclass('jobqueue_task')"
        )
        ((schema,),) = cursor.fetchall()
    # No parameters: the editor must not take a percent sign for one.
    schema_editor.execute(text.replace("{schema}", schema), None)


def read(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def run(*names: str) -> Step:
    def step(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
        if schema_editor.connection.vendor == "postgresql":
            for name in names:
                execute(schema_editor, read(name))

    return step


def uncomment(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        execute(schema_editor, ";".join(f"{what} IS NULL" for what in COMMENT.findall(read("comments"))))


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0002_storage")]

    operations = [
        migrations.RunPython(run("json_problem", "create_task", "send_to_task"), run("functions_drop")),
        # COMMENT ON in place of Django's db_comment, which warns about every column where SQLite is migrated.
        migrations.RunPython(run("comments"), uncomment),
    ]
