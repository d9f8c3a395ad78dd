from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from django.core.files.base import ContentFile

from demo_project.photos import actors
from demo_project.photos.models import Album, Photo

CHECKOUT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def demo_site(settings, tmp_path):
    """The demo's pages with the settings of the tests."""
    settings.ROOT_URLCONF = "demo_project.urls"
    settings.MEDIA_ROOT = str(tmp_path / "media")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [CHECKOUT / "templates"]}]


@pytest.fixture
def make_photo(db) -> Callable[..., Photo]:
    def make(data: bytes, *, name: str = "photo.jpg", album: Album | None = None) -> Photo:
        photo = Photo(album=album or Album.objects.create(), name=name, size=len(data))
        photo.original.save("", ContentFile(data), save=False)
        photo.save()
        return photo

    return make


@pytest.fixture
def make_album(make_photo) -> Callable[..., Album]:
    """Create an album whose actor is about to start, without notifications."""

    def make(*pictures: bytes) -> Album:
        album = Album.objects.create()
        photos = [make_photo(data, album=album) for data in pictures]
        album.task_id = UUID(actors.Album.enqueue(str(album.pk), [str(photo.pk) for photo in photos]).id)
        album.save()
        return album

    return make
