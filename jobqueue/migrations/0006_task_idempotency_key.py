"""A key under which a task is submitted once, kept until retention deletes the row."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Q

from jobqueue.migrations import _online

COMMENT = """
COMMENT ON COLUMN jobqueue_task.idempotency_key IS
    'Unique among all tasks of the backend, ended ones too, until retention deletes the row: submitting the same key '
    'over HTTP again gives this task. NULL for most.'
"""


def explain(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(COMMENT, None)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0005_task_past_key")]

    operations = [
        _online.AddField(
            "task", "idempotency_key", models.CharField(max_length=255, null=True, verbose_name="idempotency key")
        ),
        _online.AddUniqueConstraint(
            "task",
            models.UniqueConstraint(
                fields=["backend", "idempotency_key"],
                name="jobqueue_task_idempotency",
                condition=Q(idempotency_key__isnull=False),
            ),
        ),
        migrations.AlterModelOptions(
            "task",
            {
                "permissions": [
                    ("requeue_task", "Can requeue tasks"),
                    ("cancel_task", "Can cancel tasks"),
                    ("view_payload", "Can see arguments, results and state of tasks"),
                    ("send_message", "Can send messages to tasks"),
                    ("wake_task", "Can wake suspended tasks"),
                    ("submit_task", "Can submit tasks over HTTP"),
                ],
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
            },
        ),
        _online.RunPython(explain, migrations.RunPython.noop),
    ]
