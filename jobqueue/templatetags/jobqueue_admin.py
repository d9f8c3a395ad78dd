"""
The filters and the tag of the admin's templates.

Every template engine imports this module, even on a site without the admin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import template

from jobqueue.admin import html
from jobqueue.operations import formatting
from jobqueue.values.text import number_text

register = template.Library()
register.filter("thousands", number_text)
for function in (
    formatting.short_type,
    formatting.short_id,
    formatting.duration,
    formatting.wall_time,
    html.badge,
    html.schedule_badge,
    html.executor_badge,
    html.tick_words,
    html.took,
    html.breakable,
    html.moment,
    html.clock,
    html.bar_words,
    html.foldable,
):
    register.filter(function.__name__, function)


@register.simple_tag(takes_context=True)
def jobqueue_overview(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context of the app's index. Django's admin gives its template no other way to read rows."""
    from jobqueue.admin.overview import read_overview

    return read_overview(context["request"])
