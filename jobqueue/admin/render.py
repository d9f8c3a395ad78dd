"""Small pieces of HTML. Data enters through format_html only."""

from __future__ import annotations

import re
from datetime import datetime

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from jobqueue.inspect.formatting import Text, duration, moment_in_words
from jobqueue.models import Task

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


def badge(status: str) -> SafeString:
    """A status as word, shape and colour."""
    known = status in Task.Status.values
    return shaped(
        status.lower() if known else "unknown",
        SHAPES[Task.Status(status)] if known else "?",
        str(Task.Status(status).label) if known else status,
    )


def shaped(kind: str, shape: str, word: Text) -> SafeString:
    return format_html(
        '<span class="jq-badge jq-{}"><span class="jq-shape" aria-hidden="true">{}</span>{}</span>', kind, shape, word
    )


def breakable(name: str) -> SafeString:
    """A dotted name that a narrow column breaks after dots and underscores."""
    parts = re.findall(r"[^._]*[._]+|[^._]+", name)
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


def moment(at: datetime | None, words: str = "") -> SafeString:
    """A time as text, with the exact time in its title."""
    if at is None:
        return format_html("{}", words or "–")
    exact = moment_in_words(at)
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exact, words or exact)


def ago(at: datetime, now: datetime) -> SafeString:
    """A time relative to now."""
    if at > now:
        return moment(at, _("in %(time)s") % {"time": duration(at - now)})
    return moment(at, _("%(time)s ago") % {"time": duration(now - at)})
