"""The journal of workflows. Plain tasks have no rows here, and no column, index or trigger of their own changes."""

import django.db.models.deletion
from django.db import migrations, models

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0018_room_for_versions")]

    operations = [
        migrations.CreateModel(
            "JournalEntry",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField("name", max_length=255)),
                ("kind", models.CharField("kind", max_length=16)),
                ("status", models.CharField("status", max_length=16)),
                ("arguments", models.JSONField("arguments", null=True)),
                ("digest", models.CharField("digest of the arguments", max_length=16, null=True)),
                ("value", models.JSONField("result", null=True)),
                ("error", models.JSONField("error", null=True)),
                ("attempts", models.IntegerField("attempts", default=0)),
                ("child_id", models.UUIDField("child", null=True)),
                ("started_at", models.DateTimeField("started at", null=True)),
                ("finished_at", models.DateTimeField("finished at", null=True)),
                ("due_at", models.DateTimeField("due at", null=True)),
                (
                    "task",
                    models.ForeignKey(
                        to="jobqueue.task",
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="journal",
                        db_constraint=False,
                        db_index=False,
                        verbose_name="task",
                    ),
                ),
            ],
            options={
                "verbose_name": "journal entry",
                "verbose_name_plural": "journal entries",
                "db_table": "jobqueue_journalentry",
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("task", "name"), name="jobqueue_journal_name")],
            },
        ),
        migrations.RunPython(run_files("journal", "record"), migrations.RunPython.noop),
    ]
