"""The indexes of AWAITING_CODE tasks. On PostgreSQL, executors continue while they are built."""

from typing import Any

from django.db import migrations, models
from django.db.models import Q

from jobqueue.migrations.sql import run_files


class AddIndexBesideWrites(migrations.AddIndex):
    """Add an index without a lock that stops writes. It can be repeated after an interruption."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            is_beside = not schema_editor.connection.in_atomic_block  # a test may migrate in its transaction
            schema_editor.remove_index(model, self.index, concurrently=is_beside)  # an invalid one
            schema_editor.add_index(model, self.index, concurrently=is_beside)


IS_AWAITING = Q(status="AWAITING_CODE")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("jobqueue", "0004_awaiting_code")]

    operations = [
        AddIndexBesideWrites(
            "task",
            models.Index(
                fields=["backend", "queue_name", "task_type", "awaits_code_since", "id"],
                name="jobqueue_task_awaiting_code",
                condition=IS_AWAITING,
            ),
        ),
        AddIndexBesideWrites(
            "task",
            models.Index(
                fields=["backend", "wake_at"],
                name="jobqueue_task_end_of_code_wait",
                condition=IS_AWAITING & Q(wake_at__isnull=False),
            ),
        ),
        migrations.RunPython(run_files("comments", "comments_of_code"), migrations.RunPython.noop),
    ]
