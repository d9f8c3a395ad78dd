"""
The tables of what bodies report while they run.

task_id is not a foreign key, because checking one would lock the row of the task.
"""

from __future__ import annotations

from django.db import models

from jobqueue.models.indexes import unique


class TaskProgress(models.Model):
    """The progress that a body has reported with `context.progress()`. claim_number: of the attempt."""

    task_id = models.UUIDField(primary_key=True)
    claim_number = models.BigIntegerField()
    done = models.FloatField()
    total = models.FloatField(null=True)
    note = models.TextField()
    reported_at = models.DateTimeField()

    class Meta:
        app_label = "jobqueue"
        db_table = "jobqueue_taskprogress"
        default_permissions = ()

    def __str__(self) -> str:
        return f"progress of {self.task_id}"


class TaskLog(models.Model):
    """The newest lines that the body has logged in one attempt or poll. dropped: how many older ones are not kept."""

    id = models.BigAutoField(primary_key=True)
    task_id = models.UUIDField()
    claim_number = models.BigIntegerField()
    dropped = models.BigIntegerField()
    lines = models.TextField()

    class Meta:
        app_label = "jobqueue"
        db_table = "jobqueue_tasklog"
        default_permissions = ()
        constraints = [unique("tasklog_once", "task_id", "claim_number")]

    def __str__(self) -> str:
        return f"log of {self.task_id}"
