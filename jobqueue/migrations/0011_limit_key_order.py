"""Tell Django how keys of limits are sorted: storage.sql has set it, so no table changes."""

from django.db import migrations

from jobqueue.models.indexes import LimitKeyField


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0010_task_rated_index")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    "task", f"{kind}_key", LimitKeyField(max_length=560, null=True, verbose_name=f"{kind} key")
                )
                for kind in ("concurrency", "rate")
            ]
        )
    ]
