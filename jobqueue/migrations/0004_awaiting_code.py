"""
The status AWAITING_CODE, and since when a task has it.

On PostgreSQL, neither change reads the table: the new constraint allows more than the old one, so the rows meet it.
"""

from typing import Any

from django.db import migrations, models
from django.db.models import Q

STATUSES = [
    "READY",
    "BLOCKED",
    "SCHEDULED",
    "AWAITING_CODE",
    "RUNNING",
    "SUSPENDED",
    "SUCCESSFUL",
    "FAILED",
    "CANCELLED",
]
CHOICES = [(status, status.capitalize().replace("_", " ")) for status in STATUSES]


class AddUncheckedConstraint(migrations.AddConstraint):
    """Add a constraint that the rows of the table are known to meet."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            constraint = self.constraint.create_sql(model, schema_editor)
            schema_editor.execute(f"{constraint} NOT VALID", params=None)


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0003_scheduletick_skips")]

    operations = [
        migrations.AlterField(
            "task",
            "status",
            models.CharField("status", max_length=16, choices=CHOICES, default="READY"),
        ),
        migrations.AddField("task", "awaits_code_since", models.DateTimeField("awaits code since", null=True)),
        migrations.RemoveConstraint("task", "jobqueue_task_status"),
        AddUncheckedConstraint(
            "task", models.CheckConstraint(condition=Q(status__in=STATUSES), name="jobqueue_task_status")
        ),
    ]
