"""The state DRAINING becomes STOPPING. Migration 0014 already requires that executors of older code are stopped."""

from django.db import migrations, models

from jobqueue.migrations.sql import run_files

STATES = [("RUNNING", "Running"), ("PAUSED", "Paused"), ("STOPPING", "Stopping"), ("STOPPED", "Stopped")]
RENAME = "UPDATE jobqueue_heartbeat SET state = 'STOPPING' WHERE state = 'DRAINING'"
RENAME_BACK = "UPDATE jobqueue_heartbeat SET state = 'DRAINING' WHERE state = 'STOPPING'"


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0014_heartbeat")]

    operations = [
        migrations.AlterField(
            "heartbeat", "state", models.CharField("state", max_length=16, choices=STATES, default="RUNNING")
        ),
        migrations.RunSQL(RENAME, RENAME_BACK),
        migrations.RunPython(run_files("heartbeats"), migrations.RunPython.noop),
    ]
