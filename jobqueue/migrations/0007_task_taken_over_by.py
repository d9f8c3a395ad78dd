"""
A task that takes over the unique key of a running one no longer waits for its end.

No step reads or writes the whole table: a column is renamed, and the index of keys keeps its entries.
"""

from typing import Any

from django.db import migrations, models
from django.db.models import Q

from jobqueue.migrations.sql import run_files
from jobqueue.models.clock import Clock

NO_COMMENT = "COMMENT ON COLUMN jobqueue_task.taken_over_by_id IS NULL"  # it described the successor


def release_successors(apps: Any, schema_editor: Any) -> None:
    """Let the tasks run that wait for the end of another one. Those with a limit wait for it."""
    using = schema_editor.connection.alias
    waiting = apps.get_model("jobqueue", "Task").objects.using(using).filter(status="BLOCKED")
    requests = apps.get_model("jobqueue", "AdmissionRequest").objects.using(using)
    found = list(
        waiting.filter(predecessor_id__isnull=False).values_list("pk", "backend", "concurrency_key", "rate_key")
    )
    for pk, backend, concurrency_key, rate_key in found:
        keys = [(kind, key) for kind, key in (("concurrency", concurrency_key), ("rate", rate_key)) if key is not None]
        for kind, key in keys:
            requests.create(backend=backend, kind=kind, key=key, due_at=Clock())
        waiting.filter(pk=pk).update(status="BLOCKED" if keys else "READY", predecessor_id=None)
    requests.filter(kind="predecessor").delete()


def remove_comment(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(NO_COMMENT)


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0006_task_rate_index")]

    operations = [
        migrations.RunPython(release_successors, migrations.RunPython.noop),
        migrations.RemoveIndex("task", "jobqueue_task_rate"),
        migrations.RenameIndex("task", "jobqueue_task_rate", old_name="jobqueue_task_rate_new"),
        migrations.RemoveField("task", "predecessor_id"),
        migrations.SeparateDatabaseAndState(
            [migrations.RenameField("task", "successor_id", "taken_over_by_id")],
            [
                migrations.RemoveConstraint("task", "jobqueue_task_key"),
                migrations.RenameField("task", "successor_id", "taken_over_by_id"),
                migrations.AlterField(
                    "task", "taken_over_by_id", models.UUIDField(null=True, verbose_name="key taken over by")
                ),
                migrations.AddConstraint(
                    "task",
                    models.UniqueConstraint(
                        fields=["backend", "key"],
                        name="jobqueue_task_key",
                        condition=Q(finished_at__isnull=True, key__isnull=False, taken_over_by_id__isnull=True),
                    ),
                ),
            ],
        ),
        migrations.RunPython(run_files("create_task", "enqueue"), migrations.RunPython.noop),
        migrations.RunPython(remove_comment, migrations.RunPython.noop),
    ]
