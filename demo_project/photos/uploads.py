"""Uploads: the photos of a visitor and their tasks are saved together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from uuid import UUID

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from demo_project.photos import actors, tasks
from demo_project.photos.models import Album, Photo, album_tag


def receive(files: Sequence[UploadedFile[Any]]) -> Album:
    """Save the album and its photos, and enqueue their work, in one transaction."""
    album, photos = Album(), []
    try:
        for file in files:
            photo = Photo(album=album, name=PurePath(file.name or "unnamed").name[-255:], size=file.size or 0)
            photos.append(photo)
            photo.original.save("", file, save=False)
        with transaction.atomic():
            enqueue_work(album, photos)
            album.save()
            Photo.objects.bulk_create(photos)
    except BaseException:
        # A rollback does not remove files.
        for photo in photos:
            photo.original.delete(save=False)
        raise
    return album


def enqueue_work(album: Album, photos: Sequence[Photo]) -> None:
    """Enqueue the album's actor, which processes the pictures, and the tasks that notify others."""
    ids, tags = [str(photo.pk) for photo in photos], [album_tag(album.pk)]
    album.task_id = UUID(actors.Album.using(tags=tags).enqueue(str(album.pk), ids).id)
    results = tasks.notify.using(tags=tags).enqueue_many([((pk,), {}) for pk in ids])
    for photo, result in zip(photos, results, strict=True):
        photo.notify_task_id = UUID(result.id)
    album.followers_task_id = UUID(tasks.tell_followers.using(tags=tags).enqueue(str(album.pk)).id)
