"""Who did what, in the history of the row that it was done to."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.http import HttpRequest

from jobqueue.engine.clock import Clock


def write(request: HttpRequest, rows: Iterable[Model], what: str) -> None:
    """Log one change of each row by the one who is logged in, by the clock that the page compares it with."""
    LogEntry.objects.bulk_create(
        LogEntry(
            action_time=Clock(),
            user_id=str(request.user.pk),
            content_type=ContentType.objects.get_for_model(row),
            object_id=str(row.pk),
            object_repr=str(row)[:200],
            action_flag=CHANGE,
            change_message=what,
        )
        for row in rows
    )
