"""Replace the index of rates: it also has the claimed tasks that have not started."""

from importlib import import_module

from django.db import migrations, models
from django.db.models import Q

AddIndexBesideWriters = import_module("jobqueue.migrations.0006_task_rate_index").AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("jobqueue", "0009_rate_starts")]

    operations = [
        AddIndexBesideWriters(
            "task",
            models.Index(
                fields=["backend", "rate_key", "status", "rank", "id"],
                name="jobqueue_task_rated",
                condition=Q(rate_key__isnull=False)
                & (
                    Q(status="READY")
                    | Q(status="RUNNING", start_counted_at__isnull=True)
                    | Q(status="BLOCKED") & (Q(concurrency_key__isnull=True) | Q(counts_while_waiting=True))
                ),
            ),
        ),
        migrations.RemoveIndex("task", "jobqueue_task_rate"),
    ]
