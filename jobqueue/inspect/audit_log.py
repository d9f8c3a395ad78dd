"""Who changed what by hand: entries in the history of Django's admin, where a site has one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.apps import apps
from django.db.models import Model
from django.http import HttpRequest

from jobqueue.engine.clock import Clock
from jobqueue.models import Task

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry

SHOWN = 100  # entries of a task


def write(request: HttpRequest, rows: Iterable[Model], message: str) -> None:
    """Log one change of each row by the user who is logged in."""
    add_entries(request, ((type(row), row.pk, str(row), message) for row in rows))


def add_entries(request: HttpRequest, entries: Iterable[tuple[type[Model], object | None, str, str]]) -> None:
    """Log changes: model, primary key or None for many rows, title, message. The database's clock dates them."""
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    # LogEntry.objects.log_actions() has other arguments in each version of Django, and needs the rows.
    LogEntry.objects.bulk_create(
        LogEntry(
            action_time=Clock(),
            user_id=str(request.user.pk),
            content_type=ContentType.objects.get_for_model(model),
            object_id=None if pk is None else str(pk),
            object_repr=title[:200],
            action_flag=CHANGE,
            change_message=message,
        )
        for model, pk, title, message in entries
    )


def entries_of(task: Task) -> list[LogEntry]:
    """Return the manual actions on a task, newest first; none on a site without the admin."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    content_type = ContentType.objects.get_for_model(Task)
    entries = LogEntry.objects.filter(content_type=content_type, object_id=str(task.pk)).select_related("user")
    return list(entries.order_by("-action_time")[:SHOWN])
