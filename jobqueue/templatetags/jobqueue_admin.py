"""What the admin's templates need beside Django's own filters."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from jobqueue.admin import render, words

register = template.Library()


@register.filter
def badge(status: str) -> SafeString:
    return render.badge(status)


@register.filter
def moment(at: datetime | None, now: datetime | None = None) -> SafeString:
    """Show a time; with `now`, as how long ago."""
    if at is None or now is None:
        return render.moment(at)
    return render.ago(at, now)


@register.filter
def short_type(task_type: str) -> str:
    return words.short_type(task_type)
