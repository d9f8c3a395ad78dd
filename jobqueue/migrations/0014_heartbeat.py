"""
Heartbeats move to a table of their own, whose rows people have no reason to lock.

Stop the executors of older code before this migration: their heartbeats fail on these tables. If they run on, they
claim nothing from then on and take no tasks of others. Tasks that they still run after HEARTBEAT_TIMEOUT start again.
"""

import django.db.models.deletion
from django.db import migrations, models

from jobqueue.migrations.sql import run_files

STATES = [("RUNNING", "Running"), ("PAUSED", "Paused"), ("DRAINING", "Stopping"), ("STOPPED", "Stopped")]
COPY = """
INSERT INTO jobqueue_heartbeat (executor_id, at, state, waiting_for_connections)
SELECT id, heartbeat, state, waiting_for_connections FROM jobqueue_executor
"""
COPY_BACK = """
UPDATE jobqueue_executor SET
    heartbeat = COALESCE((SELECT at FROM jobqueue_heartbeat WHERE executor_id = jobqueue_executor.id), started_at),
    state = COALESCE((SELECT state FROM jobqueue_heartbeat WHERE executor_id = jobqueue_executor.id), 'STOPPED')
"""


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0013_executor_shortage")]

    operations = [
        migrations.CreateModel(
            "Heartbeat",
            [
                (
                    "executor",
                    models.OneToOneField(
                        to="jobqueue.executor",
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        serialize=False,
                        db_constraint=False,
                    ),
                ),
                ("at", models.DateTimeField("last heartbeat")),
                ("state", models.CharField("state", max_length=16, choices=STATES, default="RUNNING")),
                ("waiting_for_connections", models.IntegerField("waiting for connections", default=0)),
                ("problem", models.TextField("problem", null=True)),
            ],
            options={"db_table": "jobqueue_heartbeat", "default_permissions": ()},
        ),
        migrations.AlterField("executor", "heartbeat", models.DateTimeField("last heartbeat", null=True)),
        migrations.RunSQL(COPY, COPY_BACK),
        migrations.RemoveField("executor", "heartbeat"),
        migrations.RemoveField("executor", "state"),
        migrations.RemoveField("executor", "waiting_for_connections"),
        migrations.DeleteModel("FallbackHeartbeat"),
        migrations.RunPython(run_files("comments", "heartbeats"), migrations.RunPython.noop),
    ]
