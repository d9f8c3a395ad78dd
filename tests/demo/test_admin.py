"""What the demo adds to the admin: tags, links, a column, and the tasks of an album."""

from __future__ import annotations

import importlib

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from demo_project.photos import uploads
from jobqueue.admin.extensions import extensions
from jobqueue.models import Task
from jobqueue.testing import poll_once
from tests.demo.pictures import picture
from tests.factories import make_user

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture
def own_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the demo's admin.py for this test alone: its columns would be in the lists of other tests."""
    monkeypatch.setattr(extensions, "links", {})
    monkeypatch.setattr(extensions, "columns", {})
    importlib.reload(importlib.import_module("demo_project.admin"))


def test_admin_shows_an_album_its_tasks_and_links_to_its_pages(client, own_extensions):
    album = uploads.receive([SimpleUploadedFile("a.jpg", picture(), "image/jpeg")])
    poll_once(str(album.task_id))
    photo = album.photos.get()
    client.force_login(make_user(is_superuser=True))

    listed = client.get("/admin/jobqueue/task/", {"status": "READY"}).content.decode()
    own_page = client.get(f"/admin/photos/album/{album.pk}/change/").content.decode()

    assert f'<a href="/albums/{album.pk}/">Album</a>' in listed
    assert f'<a href="/#photo-{photo.pk}">Photo</a>' in listed
    assert all(task.tags for task in Task.objects.all())
    for name in ("Album", "make_thumbnail", "extract_facts", "notify", "tell_followers"):
        assert name in own_page.partition("Last tasks")[2]
    assert Task.objects.get(pk=str(album.task_id)).tags == [f"album-{str(album.pk)[:8]}"]
