"""The tables of limits. Any code may read them; only `jobqueue.engine` writes them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobqueue.records import LimitKind


class Limit(models.Model):
    """
    The number of a limit that people have changed.

    key: as in the columns concurrency_key and rate_key of tasks; or the limit's name and a colon, for all its keys.
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
            models.UniqueConstraint(fields=["backend", "kind", "key"], name="jobqueue_limit_key"),
            models.CheckConstraint(condition=Q(number__gt=0), name="jobqueue_limit_number"),
        ]

    def __str__(self) -> str:
        return self.key


class AdmissionRequest(models.Model):
    """
    A request to look whether BLOCKED tasks of a key may run now. Rows are only inserted, so that nobody waits.

    kind: the limit to look at, or "predecessor": the task that another one waits for has ended, and `key` is the id of
    the waiting one. due_at: when to look, for a rate the time when the next start is allowed.
    """

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    kind = models.CharField(max_length=16)
    key = models.CharField(max_length=560)
    due_at = models.DateTimeField()

    class Meta:
        db_table = "jobqueue_admissionrequest"
        default_permissions = ()
        indexes = [
            models.Index(fields=["backend", "due_at", "id"], name="jobqueue_admission_due"),
            models.Index(fields=["backend", "kind", "key", "due_at"], name="jobqueue_admission_key"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class RateStart(models.Model):
    """
    An earlier start of a task that a rate counts. The row of the task has the time of its last start only.

    expires_at: when the rate no longer counts it.
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
            models.Index(fields=["backend", "key", "started_at"], name="jobqueue_ratestart_key"),
            models.Index(fields=["expires_at"], name="jobqueue_ratestart_expires"),
        ]

    def __str__(self) -> str:
        return f"{self.key} at {self.started_at}"


class KeyReservation(models.Model):
    """A key that only one task may have until a time, even if that task ends earlier (unique_for)."""

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    task_id = models.UUIDField()
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "jobqueue_keyreservation"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["backend", "key"], name="jobqueue_keyreservation_key")]
        indexes = [models.Index(fields=["expires_at"], name="jobqueue_keyreserv_expires")]

    def __str__(self) -> str:
        return self.key
