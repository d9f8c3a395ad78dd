"""
Small pieces of HTML, as filters of templates and as functions. Data enters through format_html only.

Every template engine imports this module, even on a site without the admin.
"""

from __future__ import annotations

import re
from datetime import datetime

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from jobqueue.inspect import formatting
from jobqueue.inspect.formatting import Text, duration, moment_in_words
from jobqueue.models import Task

register = template.Library()
register.filter("short_type", formatting.short_type)
register.filter("short_id", formatting.short_id)

# Shapes, because not all readers see the colours.
SHAPES = {
    Task.Status.READY: "○",
    Task.Status.SCHEDULED: "◷",
    Task.Status.RUNNING: "▶",
    Task.Status.SUSPENDED: "❚❚",
    Task.Status.SUCCESSFUL: "✓",
    Task.Status.FAILED: "✗",
    Task.Status.CANCELLED: "⊘",
}


@register.filter
def badge(status: str) -> SafeString:
    """A status as word, shape and colour."""
    if status not in Task.Status.values:
        return shaped("unknown", "?", status)
    return shaped(status.lower(), SHAPES[Task.Status(status)], Task.Status(status).label)


def shaped(kind: str, shape: str, word: Text) -> SafeString:
    return format_html(
        '<span class="jq-badge jq-{}"><span class="jq-shape" aria-hidden="true">{}</span>{}</span>', kind, shape, word
    )


@register.filter
def breakable(name: str) -> SafeString:
    """A dotted name that a narrow column breaks after dots and underscores."""
    parts = re.findall(r"[^._]*[._]+|[^._]+", name)
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


@register.filter
def moment(at: datetime | None, now: datetime | None = None, words: str = "") -> SafeString:
    """A time as text, or with `now` how long ago, with the exact time in its title."""
    if at is None:
        return format_html("{}", words or "–")
    if now is not None:
        words = _("in %(time)s") if at > now else _("%(time)s ago")
        words %= {"time": duration(abs(at - now))}
    exact = moment_in_words(at)
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exact, words or exact)
