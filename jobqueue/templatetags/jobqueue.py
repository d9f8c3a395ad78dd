"""{% load jobqueue %}: the progress and the state of a task on the site's own pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django import template
from django.core.handlers.asgi import ASGIRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS, TaskResult

register = template.Library()


@register.simple_tag(takes_context=True)
def task_status(
    context: Mapping[str, Any],
    task: TaskResult[..., Any] | UUID | str,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> SafeString:
    """Show the state of a task. static/jobqueue/progress.js keeps it up to date. task: a TaskResult or an id."""
    view, attributes = _read(context, task, backend)
    return format_html('<span class="jobqueue-status"{}>{}</span>', attributes, _state(view))


@register.simple_tag(takes_context=True)
def task_progress(
    context: Mapping[str, Any],
    task: TaskResult[..., Any] | UUID | str,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    label: str = "",
) -> SafeString:
    """Show the state and the progress of a task, with a bar. label: the bar's name for screen readers."""
    view, attributes = _read(context, task, backend)
    if view.max is not None:
        value = format_html(' value="{}" max="{}"', view.value, view.max)
    else:
        # Without a value, a bar says that it goes on.
        value = SafeString(' value="1" max="1"') if view.is_final else SafeString("")
    return format_html(
        '<div class="jobqueue-progress"{}><progress role="progressbar" aria-label="{}"{}></progress> {} '
        '<span data-jobqueue="progress">{}</span> <span data-jobqueue="note">{}</span></div>',
        attributes,
        label or gettext("Progress of the task"),
        value,
        _state(view),
        view.progress,
        view.note,
    )


def _read(context: Mapping[str, Any], task: TaskResult[..., Any] | UUID | str, backend: str) -> tuple[Any, SafeString]:
    """Read a task. Return it with the attributes by which the script finds its address."""
    from jobqueue.http import progress  # models are not loaded when a template engine imports this module

    pk, backend = (task.id, task.backend) if isinstance(task, TaskResult) else (str(UUID(str(task))), backend)
    view = progress.read_view(pk, backend)
    is_asynchronous = isinstance(context.get("request"), ASGIRequest)
    stream = SafeString(" data-jobqueue-stream") if is_asynchronous else SafeString("")
    address = (
        SafeString("")
        if view.is_final
        else format_html(' data-jobqueue-task="{}"{}', progress.address(pk, backend), stream)
    )
    return view, format_html(' data-state="{}"{}', view.state, address)


def _state(view: Any) -> SafeString:
    """Return the part that screen readers announce. It changes a few times; the numbers change all the time."""
    return format_html('<span data-jobqueue="text" role="status" aria-live="polite">{}</span>', view.text)
