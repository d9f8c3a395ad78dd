"""Add a digest of the request that used an idempotency key, to refuse another request with the same key."""

from importlib import import_module

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from jobqueue.migrations import _online

sql = import_module("jobqueue.migrations.0003_sql_functions")

COMMENT = """
COMMENT ON COLUMN jobqueue_task.idempotency_key IS
    'SHA-256 of the owner (a token or a user) and the key of a submission over HTTP. Unique among all tasks of the '
    'backend, ended ones too, until retention deletes the row. The same request returns this task. NULL without a key.';
COMMENT ON COLUMN jobqueue_task.idempotency_digest IS
    'SHA-256 of the request that used the idempotency key: its task, arguments and options. Another request with the '
    'same key is refused.'
"""


def explain(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(COMMENT, None)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0013_spare_heartbeats")]

    operations = [
        _online.AddField(
            "task", "idempotency_digest", models.CharField(max_length=64, null=True, verbose_name="idempotency digest")
        ),
        _online.RunPython(explain, migrations.RunPython.noop),
        migrations.RunPython(sql.run("enqueue"), migrations.RunPython.noop),
    ]
