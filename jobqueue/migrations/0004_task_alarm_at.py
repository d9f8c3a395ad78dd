"""When a wait is over that meanwhile looks again at the mail it left unread."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from jobqueue.migrations import _online

COMMENT = """
COMMENT ON COLUMN jobqueue_task.timeout_at IS
    'When the sleep or timeout ends of an actor that left mail unread and looks at it again, at wake_at, meanwhile; '
    'else NULL.'
"""


def explain(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(COMMENT, None)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0003_sql_functions")]

    operations = [
        _online.AddField("task", "timeout_at", models.DateTimeField(null=True, verbose_name="times out at")),
        _online.RunPython(explain, migrations.RunPython.noop),
    ]
