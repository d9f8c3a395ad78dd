"""Limits of queues, per process and for all; executors that people tell what to do."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Q

from jobqueue.migrations import _online

COMMENTS = """
COMMENT ON COLUMN jobqueue_queue.max_running IS
    'Most tasks of the queue that run at once, in all executors together; NULL: any number.';
COMMENT ON COLUMN jobqueue_executor.queue_limits IS
    'JSON object: most tasks of a queue that this process runs at once, for queues that it limits (--queue name:4).';
COMMENT ON COLUMN jobqueue_executor.state IS
    'RUNNING; QUIET: it claims nothing more and runs what it has; DRAINING: the same, and then it ends; STOPPED.';
COMMENT ON COLUMN jobqueue_executor.command IS
    'What somebody asks it to do: QUIET, RESUME or STOP; it empties this when it has heard, within a second or so.';
"""


def explain(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(COMMENTS, None)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0006_task_idempotency_key")]

    operations = [
        _online.AddField(
            "queue",
            "max_running",
            models.PositiveIntegerField(blank=True, null=True, verbose_name="most running at once"),
        ),
        _online.AddConstraint(
            "queue",
            models.CheckConstraint(
                condition=Q(max_running__isnull=True) | Q(max_running__gt=0), name="jobqueue_queue_max_running"
            ),
        ),
        _online.AddField(
            "executor",
            "queue_limits",
            models.JSONField(
                db_default=models.Value({}, models.JSONField()), default=dict, verbose_name="most of a queue at once"
            ),
        ),
        migrations.AlterField(
            "executor",
            "state",
            models.CharField(
                choices=[
                    ("RUNNING", "Running"),
                    ("QUIET", "Quiet"),
                    ("DRAINING", "Stopping"),
                    ("STOPPED", "Stopped"),
                ],
                default="RUNNING",
                max_length=16,
                verbose_name="state",
            ),
        ),
        migrations.AlterModelOptions(
            "executor",
            {
                "permissions": [("command_executor", "Can quiet, resume and stop executors")],
                "verbose_name": "executor",
                "verbose_name_plural": "executors",
            },
        ),
        migrations.AlterModelOptions(
            "queue",
            {
                "permissions": [("pause_queue", "Can pause, resume and limit queues")],
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
            },
        ),
        _online.RunPython(explain, migrations.RunPython.noop),
    ]
