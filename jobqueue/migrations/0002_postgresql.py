"""PostgreSQL only: storage parameters, SQL functions, comments on tables and columns."""

from collections.abc import Callable
from pathlib import Path

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SQL = Path(__file__).parent / "sql"
# The functions name the schema of the tables, which the caller's search_path may lack.
SCHEMA_OF_TABLES = """
SELECT quote_ident(nspname) FROM pg_namespace JOIN pg_class ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('jobqueue_task')
"""


def run_files(*names: str) -> Callable[[Apps, BaseDatabaseSchemaEditor], None]:
    def run(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
        if schema_editor.connection.vendor != "postgresql":
            return
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(SCHEMA_OF_TABLES)
            ((schema,),) = cursor.fetchall()
        for name in names:
            text = (SQL / f"{name}.sql").read_text(encoding="utf-8")
            # None: no parameters, so that a percent sign in the SQL stays what it is.
            schema_editor.execute(text.replace("{schema}", schema), None)

    return run


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0001_initial")]

    operations = [
        migrations.RunPython(
            run_files("storage", "tags", "create_task", "send_to_task", "enqueue", "comments"),
            run_files("drop"),
        ),
    ]
