"""Models of the photo site. The tables of the queue are in `jobqueue.models`."""

from __future__ import annotations

import uuid

from django.db import models
from django.urls import reverse


def original_path(photo: Photo, filename: str) -> str:
    """Return the path of an upload. The file name of the visitor is not used: it may be unsafe."""
    return original_file(photo.pk)


def original_file(photo_id: uuid.UUID | str) -> str:
    return f"originals/{photo_id}"


def thumbnail_path(photo_id: uuid.UUID | str) -> str:
    return f"thumbnails/{photo_id}.webp"


def contact_sheet_path(album_id: uuid.UUID | str) -> str:
    return f"contact-sheets/{album_id}.webp"


def album_tag(album_id: uuid.UUID | str) -> str:
    """Return the tag of an album's tasks. The beginning of the id is short, and enough to find them."""
    return f"album-{str(album_id)[:8]}"


class Album(models.Model):
    """The photos of one upload. Its actor, `actors.Album`, writes the state."""

    class State(models.TextChoices):
        GATHERING = "GATHERING", "gathering"
        WAITING = "WAITING", "waiting for you"
        PUBLISHED = "PUBLISHED", "published"
        DISCARDED = "DISCARDED", "discarded"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    task_id = models.UUIDField(null=True, editable=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.GATHERING)
    failures = models.JSONField(default=dict, blank=True, help_text="why, by the id of the photo")
    reminders = models.PositiveSmallIntegerField(default=0)
    reminded_at = models.DateTimeField(null=True, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)

    # Written by tell_followers.
    followers_notified = models.PositiveIntegerField(null=True, blank=True)
    followers_task_id = models.UUIDField(null=True, editable=False)

    class Meta:
        ordering = ["-created_at", "id"]

    def __str__(self) -> str:
        return f"album of {self.created_at:%Y-%m-%d %H:%M}"

    def get_absolute_url(self) -> str:
        return reverse("photos:album", args=[self.pk])

    @property
    def shown(self) -> list[Photo]:
        """Return the photos that have a thumbnail."""
        return [photo for photo in self.photos.all() if photo.thumbnail]

    @property
    def is_decided(self) -> bool:
        return self.state in (self.State.PUBLISHED, self.State.DISCARDED)


class ContactSheet(models.Model):
    """One picture with all photos of a published album."""

    album = models.OneToOneField(Album, models.CASCADE, related_name="contact_sheet")
    path = models.CharField(max_length=255)
    width = models.PositiveIntegerField()
    height = models.PositiveIntegerField()
    photos = models.PositiveIntegerField(help_text="how many are on it")
    made_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"contact sheet of {self.photos} photos"


class Photo(models.Model):
    """An uploaded file, and the results of its tasks."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    album = models.ForeignKey(Album, models.CASCADE, related_name="photos")
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
    # Written by notify.
    notified_at = models.DateTimeField(null=True, blank=True)

    # The other tasks are children of the album's actor.
    notify_task_id = models.UUIDField(null=True, editable=False)

    class Meta:
        ordering = ["-uploaded_at", "id"]
        indexes = [models.Index(fields=["-uploaded_at", "id"], name="photos_newest")]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("photos:gallery") + f"#photo-{self.pk}"

    @property
    def megapixels(self) -> float | None:
        return self.width * self.height / 1e6 if self.width and self.height else None


class Delivery(models.Model):
    """An event that the demo's webhook received: the number of calls, and the time of acceptance."""

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
