from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.files.base import ContentFile

from demo_project.photos.models import Photo, Upload

CHECKOUT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def demo_site(settings, tmp_path):
    """The pages of the demo, on the tests' own settings."""
    settings.ROOT_URLCONF = "demo_project.urls"
    settings.MEDIA_ROOT = str(tmp_path / "media")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [CHECKOUT / "templates"]}]


@pytest.fixture
def make_photo(db) -> Callable[..., Photo]:
    def make(data: bytes, *, name: str = "photo.jpg") -> Photo:
        photo = Photo(upload=Upload.objects.create(), name=name, size=len(data))
        photo.original.save("", ContentFile(data), save=False)
        photo.save()
        return photo

    return make
