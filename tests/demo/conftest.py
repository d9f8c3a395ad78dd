from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from django.conf import settings
from django.core.files.base import ContentFile
from psycopg import sql

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


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The database of the site: its name in the page, and what its settings add."""
    if request.param == "SQLite":
        yield request.param, ""
        return
    url = request.getfixturevalue("process_environment")["DATABASE_URL"]
    name = f"mysite_{os.getpid()}"
    here = {key: settings.DATABASES["default"][key] for key in ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield request.param, f'DATABASES["default"].update({here | {"NAME": name}!r})\n'
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
