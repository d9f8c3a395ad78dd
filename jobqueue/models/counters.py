"""The tables of counters."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.models.indexes import index, unique


class Counter(models.Model):
    """Counters of one task type in one queue, of all time."""

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(_("backend"), max_length=64)
    queue_name = models.CharField(_("queue"), max_length=128)
    task_type = models.CharField(_("task"), max_length=500)
    submitted = models.BigIntegerField(_("submitted"), default=0)
    completed = models.BigIntegerField(_("completed"), default=0)
    failed = models.BigIntegerField(_("attempts failed"), default=0)
    retries = models.BigIntegerField(_("retries"), default=0)
    dead = models.BigIntegerField(_("tasks failed"), default=0)
    lost = models.BigIntegerField(_("executor losses"), default=0)
    ticks_enqueued = models.BigIntegerField(_("ticks enqueued"), default=0)
    ticks_overlap = models.BigIntegerField(_("ticks skipped: overlap"), default=0)
    ticks_paused = models.BigIntegerField(_("ticks skipped: paused"), default=0)
    ticks_missed = models.BigIntegerField(_("ticks skipped: missed"), default=0)
    ticks_key = models.BigIntegerField(_("ticks skipped: key"), default=0)
    wait_seconds = models.FloatField(_("seconds waited"), default=0.0)
    run_seconds = models.FloatField(_("seconds run"), default=0.0)
    lateness_seconds = models.FloatField(_("seconds late"), default=0.0)
    waits = models.JSONField(_("waits"), default=list)
    runs = models.JSONField(_("runs"), default=list)
    lateness = models.JSONField(_("lateness"), default=list)

    class Meta:
        db_table = "jobqueue_counter"
        verbose_name = _("counter")
        verbose_name_plural = _("counters")
        default_permissions = ()
        permissions = [("view_metrics", "Can see metrics over HTTP")]
        constraints = [unique("counter_total", "backend", "queue_name", "task_type")]

    def __str__(self) -> str:
        return f"{self.task_type} in {self.queue_name}"


class CounterPeriod(models.Model):
    """
    Counters of a minute or an hour: of a whole backend, of one queue, or of one task type.

    A chart reads one row for each period, however many queues and task types there are.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    scope = models.CharField(max_length=8)  # a metrics.Scope
    name = models.CharField(max_length=500)  # of the queue or the task type; empty for a backend
    length = models.CharField(max_length=8)  # a metrics.Length
    start = models.DateTimeField()
    submitted = models.BigIntegerField(default=0)
    attempts = models.BigIntegerField(default=0)
    completed = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    retries = models.BigIntegerField(default=0)
    dead = models.BigIntegerField(default=0)
    lost = models.BigIntegerField(default=0)
    wait_seconds = models.FloatField(default=0.0)
    run_seconds = models.FloatField(default=0.0)
    waits = models.JSONField(default=list)
    runs = models.JSONField(default=list)

    class Meta:
        db_table = "jobqueue_counterperiod"
        default_permissions = ()
        # The latest periods of all names; and pruning.
        indexes = [index("counter_latest", "length", "start")]
        constraints = [unique("counter_period", "backend", "scope", "name", "length", "start")]

    def __str__(self) -> str:
        return f"{self.scope} {self.name}: {self.length} from {self.start}"


class CounterDelta(models.Model):
    """
    A transaction's addition to the counters. Rows are only inserted, so that no transaction waits for another.

    Executors add them up every few seconds. attempts: how many fell into wait_bucket and run_bucket. ticks_enqueued:
    how many fell into lateness_bucket. NULL means 0.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    queue_name = models.CharField(max_length=128)
    task_type = models.CharField(max_length=500)
    at = models.DateTimeField()
    submitted = models.IntegerField(null=True)
    completed = models.IntegerField(null=True)
    failed = models.IntegerField(null=True)
    retries = models.IntegerField(null=True)
    dead = models.IntegerField(null=True)
    lost = models.IntegerField(null=True)
    ticks_enqueued = models.IntegerField(null=True)
    ticks_overlap = models.IntegerField(null=True)
    ticks_paused = models.IntegerField(null=True)
    ticks_missed = models.IntegerField(null=True)
    ticks_key = models.IntegerField(null=True)
    attempts = models.IntegerField(null=True)
    wait_bucket = models.SmallIntegerField(null=True)
    run_bucket = models.SmallIntegerField(null=True)
    lateness_bucket = models.SmallIntegerField(null=True)
    wait_seconds = models.FloatField(null=True)
    run_seconds = models.FloatField(null=True)
    lateness_seconds = models.FloatField(null=True)

    class Meta:
        db_table = "jobqueue_counterdelta"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.task_type} in {self.queue_name}"
