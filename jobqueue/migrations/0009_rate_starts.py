"""
A rate counts starts of bodies, which have a table of their own, instead of claims.

Starts of the last period are copied, so that a migration lets no rate start too many.
"""

from datetime import timedelta
from typing import Any

from django.db import migrations, models
from django.db.models import F

from jobqueue.migrations.sql import run_files
from jobqueue.models.clock import read_clock


def copy_starts(apps: Any, schema_editor: Any) -> None:
    Task, RateStart = (apps.get_model("jobqueue", name) for name in ("Task", "RateStart"))
    tasks = Task.objects.using(schema_editor.connection.alias).filter(rate_key__isnull=False)
    columns = ("backend", "rate_key", "rate_seconds", "last_attempted_at")
    last = tasks.exclude(status="READY").filter(last_attempted_at__isnull=False, rate_seconds__isnull=False)
    starts = (
        RateStart(backend=backend, key=key, started_at=at, expires_at=at + timedelta(seconds=seconds))
        for backend, key, seconds, at in last.values_list(*columns).iterator()
    )
    now = read_clock(schema_editor.connection.alias)
    RateStart.objects.using(schema_editor.connection.alias).bulk_create(
        (start for start in starts if start.expires_at > now), batch_size=1000
    )
    tasks.filter(status="RUNNING").update(start_counted_at=F("last_attempted_at"))


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0008_sql_bounds")]

    operations = [
        migrations.AddField("task", "start_counted_at", models.DateTimeField("start counted at", null=True)),
        migrations.RunPython(copy_starts, migrations.RunPython.noop),
        migrations.RemoveIndex("task", "jobqueue_task_rate_start"),
        migrations.RunPython(run_files("comments"), migrations.RunPython.noop),
    ]
