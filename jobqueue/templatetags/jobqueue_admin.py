"""
Filters of the admin's templates.

Every template engine imports this module, even on a site without the admin. So it imports the package only when a
filter is used.
"""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

register = template.Library()


@register.filter
def badge(status: str) -> SafeString:
    from jobqueue.admin import render

    return render.badge(status)


@register.filter
def moment(at: datetime | None, now: datetime | None = None) -> SafeString:
    """Show a time; with `now`, as how long ago."""
    from jobqueue.admin import render

    return render.moment(at) if at is None or now is None else render.ago(at, now)


@register.filter
def short_type(task_type: str) -> str:
    from jobqueue.inspect import formatting

    return formatting.short_type(task_type)


@register.filter
def breakable(name: str) -> SafeString:
    from jobqueue.admin import render

    return render.breakable(name)


@register.filter
def short_id(identifier: object) -> str:
    from jobqueue.inspect import formatting

    return formatting.short_id(identifier)
