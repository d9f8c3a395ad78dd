"""Pauses of queues and schedules: their columns, and when such a row is paused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.expressions import Combinable
from django.utils.translation import gettext_lazy as _

NO_PAUSE: Mapping[str, Any] = {"paused_at": None, "paused_by": "", "pause_reason": "", "resume_at": None}


class Pausable(models.Model):
    """A row that people pause. A pause with resume_at ends by itself: its columns stay."""

    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    paused_by = models.CharField(_("paused by"), max_length=150, default="", blank=True)
    pause_reason = models.CharField(_("reason"), max_length=255, default="", blank=True)
    resume_at = models.DateTimeField(_("resumes at"), null=True, blank=True)

    class Meta:
        abstract = True

    @property
    def has_pause(self) -> bool:
        """Whether it was paused. The pause may have ended by itself."""
        return self.paused_at is not None

    def is_paused_at(self, now: datetime) -> bool:
        """Return whether it is paused, and the pause has not ended. now: of the database."""
        return self.has_pause and (self.resume_at is None or self.resume_at > now)


def is_paused(now: datetime | Combinable) -> Q:
    """Return the same as a condition for rows. is_paused.sql is this condition for statements from files."""
    return Q(paused_at__isnull=False) & (Q(resume_at__isnull=True) | Q(resume_at__gt=now))
