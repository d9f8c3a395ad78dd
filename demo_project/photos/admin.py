from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from demo_project.photos.models import Album, ContactSheet, Delivery, Photo, Report, album_tag
from jobqueue.admin.extensions import TasksOfObjectMixin


@admin.register(ContactSheet, Delivery, Photo, Report)
class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Only tasks write these rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Album)
class AlbumAdmin(TasksOfObjectMixin, ReadOnlyAdmin):
    list_display = ["__str__", "state", "reminders", "decided_at"]
    list_filter = ["state"]

    def tasks_search(self, obj: Album) -> str:
        return f"tag:{album_tag(obj.pk)}"
