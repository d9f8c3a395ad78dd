"""The tables of limits by key and of unique keys."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobqueue.models.indexes import index, unique
from jobqueue.values.states import LimitKind


class Limit(models.Model):
    """
    A number of a limit by key that people have set.

    key: as in the columns concurrency_key and rate_key of tasks. A name with a colon at its end stands for all keys.
    """

    class Kind(models.TextChoices):
        CONCURRENCY = LimitKind.CONCURRENCY.value, _("Concurrency")
        RATE = LimitKind.RATE.value, _("Rate")

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    key = models.CharField(_("key"), max_length=560)
    number = models.PositiveIntegerField(_("limit"))
    changed_by = models.CharField(_("changed by"), max_length=150, default="", blank=True)
    reason = models.CharField(_("reason"), max_length=255, default="", blank=True)
    changed_at = models.DateTimeField(_("changed at"))

    class Meta:
        db_table = "jobqueue_limit"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        default_permissions = ("change", "view")
        constraints = [
            unique("limit_key", "backend", "kind", "key"),
            models.CheckConstraint(condition=Q(number__gt=0), name="jobqueue_limit_number"),
        ]

    def __str__(self) -> str:
        return self.key


class AdmissionRequest(models.Model):
    """
    A request that executors look at a key: its BLOCKED tasks may be allowed to run now.

    Rows are only inserted and deleted, so that no transaction waits for another one. kind: "concurrency" or "rate".
    due_at: when to look at it. is_urgent: a rate counts less than before. number: of the limit, if this is the planned
    look at a rate, when a start leaves its period. Until then, requests that are not urgent wait for it.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    kind = models.CharField(max_length=16)
    key = models.CharField(max_length=560)
    due_at = models.DateTimeField()
    is_urgent = models.BooleanField(default=False, db_default=False)
    number = models.IntegerField(null=True)

    class Meta:
        db_table = "jobqueue_admissionrequest"
        default_permissions = ()
        indexes = [
            index("admission_due", "backend", "due_at", "id"),
            index("admission_key", "backend", "kind", "key", "due_at"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class RateStart(models.Model):
    """
    A start of a body that a rate counts.

    expires_at: when the rate no longer counts the start.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    key = models.CharField(max_length=560)
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "jobqueue_ratestart"
        default_permissions = ()
        indexes = [
            index("ratestart_key", "backend", "key", "started_at"),
            index("ratestart_expires", "expires_at"),
        ]

    def __str__(self) -> str:
        return f"{self.key} at {self.started_at}"


class KeyReservation(models.Model):
    """
    A unique key that unique_for keeps taken until expires_at, even if the task ends earlier.

    task_id: the task that enqueue() returns until then.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    task_id = models.UUIDField()
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "jobqueue_keyreservation"
        default_permissions = ()
        constraints = [unique("keyreservation_key", "backend", "key")]
        indexes = [index("keyreserv_expires", "expires_at")]

    def __str__(self) -> str:
        return self.key
