from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from demo_project.photos.models import Album, ContactSheet, Delivery, Photo, Report, album_tag
from jobqueue.admin.extensions import TasksOfObjectMixin


class ReadOnly:
    """Make a model read-only: only tasks write these rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Album)
class AlbumAdmin(ReadOnly, TasksOfObjectMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["__str__", "state", "reminders", "decided_at"]
    list_filter = ["state"]

    def tasks_search(self, obj: Album) -> str:
        return f"tag:{album_tag(obj.pk)}"


@admin.register(ContactSheet)
class ContactSheetAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["__str__", "album", "made_at"]


@admin.register(Photo)
class PhotoAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "uploaded_at", "width", "height", "file_format", "problem"]
    search_fields = ["name"]


@admin.register(Delivery)
class DeliveryAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["event", "calls", "accepted_at"]


@admin.register(Report)
class ReportAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["day", "figures", "made_at"]
