"""The tables of schedules."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobqueue.models.indexes import index, unique
from jobqueue.models.pauses import Pausable
from jobqueue.values.policies import MAX_COUNTED, CatchUp, Overlap, SkipReason

STOPPED_BY = "django-jobqueue"  # paused_by of a schedule that an error has stopped
IS_STOPPED = Q(paused_at__isnull=False, paused_by=STOPPED_BY)


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    """Filter schedules."""

    def active(self) -> ScheduleQuerySet:
        """Return the schedules that are not retired."""
        return self.filter(retired_at__isnull=True)


class Schedule(Pausable):
    """A periodic task: what to enqueue, when, and which tick comes next."""

    class Overlap(models.TextChoices):
        SKIP = Overlap.SKIP.value, _("Skip the tick")
        QUEUE_ONE = Overlap.QUEUE_ONE.value, _("Let one tick wait")
        ALLOW = Overlap.ALLOW.value, _("Run both")
        CANCEL_RUNNING = Overlap.CANCEL_RUNNING.value, _("Cancel the running task")

    class CatchUp(models.TextChoices):
        LATEST = CatchUp.LATEST.value, _("Run the last missed tick")
        ALL = CatchUp.ALL.value, _("Run each missed tick")
        NONE = CatchUp.NONE.value, _("Run none")

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    name = models.CharField(_("name"), max_length=200)
    task_type = models.CharField(_("task"), max_length=500)
    # A NewTask without an id: the columns of each task.
    new_task = models.JSONField(_("new task"), default=dict)

    expression = models.CharField(_("expression"), max_length=255)
    timezone = models.CharField(_("time zone"), max_length=64, default="", blank=True)
    anchor_at = models.DateTimeField(_("counted from"), null=True, blank=True)
    starts_at = models.DateTimeField(_("starts at"), null=True, blank=True)
    ends_at = models.DateTimeField(_("ends at"), null=True, blank=True)
    jitter_seconds = models.FloatField(_("jitter in seconds"), default=0.0)
    overlap = models.CharField(_("overlap"), max_length=16, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up = models.CharField(_("catch up"), max_length=16, choices=CatchUp.choices, default=CatchUp.LATEST)
    max_catch_up = models.PositiveIntegerField(_("most ticks to catch up"), default=100)
    catch_up_window_seconds = models.FloatField(_("catch up within seconds"), null=True, blank=True)

    # Where code declares it: "shop/tasks.py:42". Empty for a schedule that people created.
    declared_at = models.CharField(_("declared at"), max_length=500, default="", blank=True)
    retired_at = models.DateTimeField(_("retired at"), null=True, blank=True)

    next_at = models.DateTimeField(_("next tick"), null=True)
    due_at = models.DateTimeField(_("due at"), null=True)
    waiting_at = models.DateTimeField(_("waiting tick"), null=True)
    created_at = models.DateTimeField(_("created at"))
    updated_at = models.DateTimeField(_("updated at"))

    objects = models.Manager.from_queryset(ScheduleQuerySet)()

    class Meta:
        db_table = "jobqueue_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("pause_schedule", "Can pause and resume schedules"),
            ("run_schedule", "Can run schedules now and backfill them"),
        ]
        indexes = [
            index("schedule_due", "backend", "due_at", due_at__isnull=False),
            index("schedule_waiting", "backend", "id", waiting_at__isnull=False),
        ]
        constraints = [unique("schedule_name", "backend", "name")]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise TypeError: saving values that were read earlier could move the next tick back."""
        raise TypeError("Schedule.save() is not allowed. Use the functions of jobqueue.api.schedules.")


class ScheduleDeployment(models.Model):
    """
    A set of declarations that some code had. The one applied last determines the schedules.

    Code whose set is in this table already does not apply it again while an executor with the current set is alive.
    A row without a digest is there to be locked: sessions apply their sets one after the other.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    digest = models.CharField(max_length=32)
    # The row of the last set has the highest id: a clock may be set back.
    applied_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "jobqueue_scheduledeployment"
        default_permissions = ()
        constraints = [unique("scheduledeployment_once", "backend", "digest")]

    def __str__(self) -> str:
        return f"{self.digest} of {self.backend}"


class ScheduleTick(models.Model):
    """
    A tick that became a task, or consecutive ticks that were skipped for one reason.

    A range of skipped ticks goes from `tick_at` to `last_at` and has `count` ticks: at least so many, if the count is
    not exact.
    """

    class Trigger(models.TextChoices):
        SCHEDULE = "schedule", _("Schedule")
        MANUAL = "manual", _("Run now")
        BACKFILL = "backfill", _("Backfill")

    class Reason(models.TextChoices):
        OVERLAP = SkipReason.OVERLAP.value, _("The previous task had not ended")
        PAUSED = SkipReason.PAUSED.value, _("The schedule was paused")
        MISSED = SkipReason.MISSED.value, _("No executor was running")
        KEY = SkipReason.KEY.value, _("Another task had the key")

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="ticks", db_index=False)
    trigger = models.CharField(_("trigger"), max_length=16, choices=Trigger.choices, default=Trigger.SCHEDULE)
    tick_at = models.DateTimeField(_("tick"))
    last_at = models.DateTimeField(_("last tick"))
    count = models.IntegerField(_("ticks"), default=1)
    # No foreign key in the database: the task may be pruned first.
    task_id = models.UUIDField(_("task"), null=True)
    reason = models.CharField(_("reason"), max_length=16, choices=Reason.choices, default="", blank=True)
    recorded_at = models.DateTimeField(_("recorded at"))

    class Meta:
        db_table = "jobqueue_scheduletick"
        verbose_name = _("tick")
        verbose_name_plural = _("ticks")
        default_permissions = ()  # the page of a schedule asks for view_schedule
        indexes = [
            index("scheduletick_age", "recorded_at"),
            # Long ranges of skipped ticks, for the problems of schedules. An ordinary tick has no entry.
            index("scheduletick_skips", "schedule", count__gte=10),
        ]
        constraints = [
            unique("scheduletick_once", "schedule", "tick_at", "trigger"),
            models.CheckConstraint(
                condition=Q(task_id__isnull=False, reason="") | Q(task_id__isnull=True) & ~Q(reason=""),
                name="jobqueue_scheduletick_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.tick_at}"

    @property
    def is_count_exact(self) -> bool:
        return self.count < MAX_COUNTED
