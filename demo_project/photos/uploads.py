"""The heart of the demo: a visitor's photos and the work they cause, saved together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from pathlib import PurePath
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.utils import timezone

from demo_project.photos import tasks
from demo_project.photos.models import Photo, Upload


def receive(files: Sequence[UploadedFile[Any]]) -> Upload:
    """Save the photos and enqueue their work in one transaction."""
    upload, photos = Upload(), []
    try:
        for file in files:
            photo = Photo(upload=upload, name=PurePath(file.name or "unnamed").name[-255:], size=file.size or 0)
            photos.append(photo)
            photo.original.save("", file, save=False)
        with transaction.atomic():
            enqueue_work(upload, photos)
            upload.save()
            Photo.objects.bulk_create(photos)
    except BaseException:
        # A rollback undoes rows, not files.
        for photo in photos:
            photo.original.delete(save=False)
        raise
    return upload


def enqueue_work(upload: Upload, photos: Sequence[Photo]) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((str(photo.pk),), {}) for photo in photos]
    thumbnails = tasks.make_thumbnail.enqueue_many(calls)
    facts = tasks.extract_facts.enqueue_many(calls)
    notices = tasks.notify.enqueue_many(calls)
    for photo, thumbnail, fact, notice in zip(photos, thumbnails, facts, notices, strict=True):
        photo.thumbnail_task_id, photo.facts_task_id, photo.notify_task_id = thumbnail.id, fact.id, notice.id
    upload.followers_task_id = tasks.tell_followers.enqueue(str(upload.pk)).id
    plan_tonights_report()


def plan_tonights_report() -> None:
    """Enqueue the report of today for two o'clock tonight; the key makes a second one the same one."""
    today = timezone.localdate()
    tonight = timezone.make_aware(datetime.combine(today + timedelta(days=1), time(2)))
    tasks.nightly_report.using(run_after=tonight, key=f"report of {today}").enqueue(today.isoformat())
