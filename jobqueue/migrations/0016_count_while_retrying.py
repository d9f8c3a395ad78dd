"""
The column hold_while_retrying becomes count_while_retrying, beside counts_while_waiting.

Stop all processes of older code before this migration: they read and write the column by its old name.
"""

from django.db import migrations, models

from jobqueue.migrations.sql import run_files


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0015_stopping")]

    operations = [
        migrations.RenameField("task", "hold_while_retrying", "count_while_retrying"),
        migrations.AlterField(
            "task",
            "count_while_retrying",
            models.BooleanField("count while retrying", default=False, db_default=False),
        ),
        migrations.RunPython(run_files("enqueue", "comments_of_limits"), migrations.RunPython.noop),
    ]
