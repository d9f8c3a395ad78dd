"""Build the index of rates again, without the column that the next migration removes."""

from typing import Any

from django.db import migrations, models
from django.db.models import Q


class AddIndexBesideWriters(migrations.AddIndex):
    """Add an index while other sessions write, where the database can. An attempt that was cut off leaves nothing."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or connection.in_atomic_block:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(connection.alias, model):
            schema_editor.remove_index(model, self.index, concurrently=True)  # IF EXISTS
            schema_editor.add_index(model, self.index, concurrently=True)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("jobqueue", "0005_awaiting_code_indexes")]

    operations = [
        AddIndexBesideWriters(
            "task",
            models.Index(
                fields=["backend", "rate_key", "status", "rank", "id"],
                name="jobqueue_task_rate_new",
                condition=Q(rate_key__isnull=False)
                & (
                    Q(status="READY")
                    | Q(status="BLOCKED") & (Q(concurrency_key__isnull=True) | Q(counts_while_waiting=True))
                ),
            ),
        ),
    ]
