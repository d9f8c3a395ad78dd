"""The manual actions on a row, from the log of Django's admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps
from django.db.models import Model
from django.utils.translation import gettext_lazy

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry

SHOWN = 100  # entries of a row
REQUEUE = gettext_lazy("Requeue")  # the first word of the entry of a requeue


def read_entries(row: Model) -> list[LogEntry]:
    """Return the manual actions on a row, newest first; none on a site without the admin."""
    return entries(type(row), row.pk)


def entries(model: type[Model], pk: object) -> list[LogEntry]:
    """Return the manual actions on what a primary key names."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    content_type = ContentType.objects.get_for_model(model)
    rows = LogEntry.objects.filter(content_type=content_type, object_id=str(pk)).select_related("user")
    return list(rows.order_by("-action_time")[:SHOWN])
