"""What the photo site keeps. The queue's own tables are `jobqueue.models`."""

from __future__ import annotations

import uuid

from django.db import models
from django.urls import reverse


def original_path(photo: Photo, filename: str) -> str:
    """Where an upload is stored: under our name, for the visitor's may be anything."""
    return f"originals/{photo.pk}"


def thumbnail_path(photo_id: uuid.UUID | str) -> str:
    return f"thumbnails/{photo_id}.webp"


class Upload(models.Model):
    """What one visitor sent with one press of the button."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    followers_told = models.PositiveIntegerField(null=True, blank=True)
    followers_task_id = models.UUIDField(null=True, editable=False)

    def __str__(self) -> str:
        return f"upload of {self.created_at:%Y-%m-%d %H:%M}"


class Photo(models.Model):
    """A file that somebody uploaded, and what the tasks found out about it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    upload = models.ForeignKey(Upload, models.CASCADE, related_name="photos")
    name = models.CharField(max_length=255)
    size = models.PositiveBigIntegerField(help_text="bytes")
    uploaded_at = models.DateTimeField(auto_now_add=True)
    original = models.FileField(upload_to=original_path)

    # Written by make_thumbnail.
    thumbnail = models.CharField(max_length=255, blank=True)
    problem = models.CharField(max_length=500, blank=True)
    # Written by extract_facts.
    width = models.PositiveIntegerField(null=True, blank=True)
    height = models.PositiveIntegerField(null=True, blank=True)
    file_format = models.CharField(max_length=40, blank=True)
    colours = models.JSONField(default=list, blank=True)
    exif = models.JSONField(default=dict, blank=True)
    # Written by notify.
    notified_at = models.DateTimeField(null=True, blank=True)

    thumbnail_task_id = models.UUIDField(null=True, editable=False)
    facts_task_id = models.UUIDField(null=True, editable=False)
    notify_task_id = models.UUIDField(null=True, editable=False)

    class Meta:
        ordering = ["-uploaded_at", "id"]
        indexes = [models.Index(fields=["-uploaded_at", "id"], name="photos_newest")]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("photos:gallery") + f"#photo-{self.pk}"

    @property
    def task_ids(self) -> list[uuid.UUID | None]:
        return [self.thumbnail_task_id, self.facts_task_id, self.notify_task_id]

    @property
    def megapixels(self) -> float | None:
        return self.width * self.height / 1e6 if self.width and self.height else None


class Delivery(models.Model):
    """What the demo's own webhook remembers of an event: how often it was called before it accepted."""

    event = models.CharField(max_length=200, unique=True)
    calls = models.PositiveIntegerField(default=0)
    accepted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return self.event


class Report(models.Model):
    """The nightly report of one day."""

    day = models.DateField(unique=True)
    figures = models.JSONField(default=dict)
    made_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-day"]

    def __str__(self) -> str:
        return f"report of {self.day}"
