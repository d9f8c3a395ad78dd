"""For counting what runs of one queue, and what waits in each."""

from django.db import migrations, models
from django.db.models import Q

from jobqueue.migrations import _online


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0008_tally")]

    operations = [
        _online.RemoveIndex("task", "jobqueue_task_running"),
        _online.AddIndex(
            "task",
            models.Index(
                fields=["executor_id", "queue_name", "id"], name="jobqueue_task_running", condition=Q(status="RUNNING")
            ),
        ),
        _online.AddIndex(
            "task",
            models.Index(
                fields=["backend", "queue_name", "status"],
                name="jobqueue_task_waiting",
                condition=Q(status__in=["SCHEDULED", "SUSPENDED"]),
            ),
        ),
    ]
