"""Add the table for heartbeats of executors whose row another session keeps locked."""

from importlib import import_module

from django.db import migrations, models

sql = import_module("jobqueue.migrations.0003_sql_functions")


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0012_moments")]

    operations = [
        migrations.CreateModel(
            name="SpareHeartbeat",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("executor_id", models.UUIDField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "jobqueue_spareheartbeat",
                "default_permissions": (),
                "indexes": [models.Index(fields=["executor_id", "at"], name="jobqueue_spareheartbeat_last")],
            },
        ),
        migrations.RunPython(sql.run("spare_heartbeats"), migrations.RunPython.noop),
    ]
