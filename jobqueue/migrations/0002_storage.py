"""PostgreSQL only: the storage parameters of a queue."""

from collections.abc import Callable
from pathlib import Path

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def run(name: str) -> Callable[[Apps, BaseDatabaseSchemaEditor], None]:
    def execute(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
        if schema_editor.connection.vendor == "postgresql":
            # No parameters: the editor must not take a percent sign for one.
            schema_editor.execute((Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8"), None)

    return execute


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0001_initial")]

    operations = [migrations.RunPython(run("storage"), run("storage_reset"))]
