"""An index by key of what has ended: a repeated message to a key is known by it."""

from django.db import migrations, models
from django.db.models import Q

from jobqueue.migrations import _online


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobqueue", "0004_task_alarm_at")]

    operations = [
        _online.AddIndex(
            "task",
            models.Index(
                fields=["backend", "key"],
                name="jobqueue_task_past_key",
                condition=Q(finished_at__isnull=False, key__isnull=False),
            ),
        ),
    ]
