from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from demo_project.photos import actors, tasks, uploads
from demo_project.photos.models import Album, Photo
from jobqueue.models import Task
from jobqueue.testing import poll_once
from tests.demo.pictures import picture

pytestmark = pytest.mark.django_db


def files(*names: str) -> list[SimpleUploadedFile]:
    return [SimpleUploadedFile(name, picture(), "image/jpeg") for name in names]


def stored_files() -> list[Path]:
    return [path for path in Path(settings.MEDIA_ROOT).rglob("*") if path.is_file()]


def test_upload_saves_photos_and_enqueues_their_work(client):
    answer = client.post("/", {"photos": files("a.jpg", "b.jpg")}, follow=True)

    assert answer.status_code == 200
    assert "2 photos received." in answer.content.decode()
    queued = sorted(task.task_type.rpartition(".")[2] for task in Task.objects.all())
    assert queued == ["Album", "notify", "notify", "tell_followers"]
    album = Album.objects.get()
    photos = [str(photo.pk) for photo in album.photos.order_by("name")]
    assert Task.objects.get(pk=str(album.task_id)).args == [str(album.pk), photos]
    assert answer.redirect_chain[-1] == (album.get_absolute_url(), 302)


@pytest.mark.parametrize(
    ("owner", "step"),
    # Django makes a new manager when the registry of apps changes, so the test asks for it.
    [(lambda: Photo.objects, "bulk_create"), (lambda: actors.Album, "using"), (lambda: Album, "save")],
    ids=["photos", "actor", "album"],
)
def test_failed_upload_leaves_no_row_and_no_file(monkeypatch, owner, step):
    def fail(*args, **kwargs):
        raise RuntimeError("the step fails")

    monkeypatch.setattr(owner(), step, fail)

    with pytest.raises(RuntimeError, match="the step fails"):
        uploads.receive(files("a.jpg"))

    assert not Album.objects.exists()
    assert not Photo.objects.exists()
    assert not Task.objects.exists()
    assert stored_files() == []


def test_upload_without_files_is_refused(client):
    answer = client.post("/", {})

    assert answer.status_code == 422
    assert "Choose at least one photo." in answer.content.decode()


def test_upload_of_empty_file_is_refused_with_a_reason(client):
    answer = client.post("/", {"photos": [SimpleUploadedFile("a.jpg", b"")]})

    assert answer.status_code == 422
    assert "empty" in answer.content.decode()


def test_gallery_escapes_file_names(client, make_photo):
    photo = make_photo(picture(), name="<script>alert(1)</script>.jpg")
    photo.problem = "<b>broken</b>"
    photo.save()

    for page in (client.get("/"), client.get(reverse("photos:live"), {"photo": photo.pk})):
        html = page.content.decode()
        assert "&lt;script&gt;alert(1)" in html
        assert not any(raw in html for raw in ("<script>alert", "<b>broken"))


def test_gallery_shows_a_finished_photo_with_thumbnail_and_facts(client, make_photo):
    photo = make_photo(picture((90, 60)), name="roof.jpg")
    tasks.make_thumbnail.call(str(photo.pk))
    tasks.extract_facts.call(str(photo.pk))

    html = client.get("/").content.decode()

    assert reverse("photos:thumbnail", args=[photo.pk]) in html
    assert "JPEG · 90 × 60" in html


def test_gallery_links_each_step_to_its_task_in_the_admin(client):
    album = uploads.receive(files("a.jpg"))
    assert "waits for its album" in client.get("/").content.decode()
    poll_once(str(album.task_id))

    html = client.get("/").content.decode()

    for task in Task.objects.filter(Q(parent=album.task_id) | Q(pk=str(Photo.objects.get().notify_task_id))):
        assert reverse("admin:jobqueue_task_change", args=[task.pk]) in html
    assert html.count("waits for its turn") + html.count("waits for an executor") == 3


def test_gallery_has_constant_number_of_queries(client):
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.get("/")
        return len(captured)

    uploads.receive(files("a.jpg"))
    for_one = queries()
    uploads.receive(files(*(f"{number}.jpg" for number in range(9))))

    assert queries() == for_one


def test_live_page_returns_requested_cards(client, make_photo):
    wanted, other = make_photo(picture(), name="wanted.jpg"), make_photo(picture(), name="other.jpg")

    html = client.get(reverse("photos:live"), {"photo": wanted.pk}).content.decode()

    assert f'id="photo-{wanted.pk}"' in html
    assert f'id="photo-{other.pk}"' not in html
    assert 'id="summary"' in html


def test_live_page_refuses_invalid_photo_id(client):
    assert client.get(reverse("photos:live"), {"photo": "nonsense"}).status_code == 404


def test_page_is_busy_until_the_work_of_its_photos_is_done(client):
    poll_once(str(uploads.receive(files("a.jpg")).task_id))

    assert b"data-busy" in client.get("/").content

    Task.objects.update(status=Task.Status.SUCCESSFUL)
    assert b"data-busy" not in client.get("/").content


def test_gallery_shows_retry_with_reason_and_time(client):
    uploads.receive(files("a.jpg"))
    task = Task.objects.filter(pk=str(Photo.objects.get().notify_task_id))
    task.update(status=Task.Status.SCHEDULED, worker_ids=["x"], errors=[{"message": "the webhook answered 503"}])

    assert "the webhook answered 503; try 2 of 6 at once" in client.get("/").content.decode()


def test_thumbnail_is_served_and_original_is_not(client, make_photo):
    photo = make_photo(picture(), name="page.html")
    assert client.get(reverse("photos:thumbnail", args=[photo.pk])).status_code == 404

    tasks.make_thumbnail.call(str(photo.pk))

    answer = client.get(reverse("photos:thumbnail", args=[photo.pk]))
    assert answer["Content-Type"] == "image/webp"
    assert b"".join(answer.streaming_content)[8:12] == b"WEBP"


@pytest.mark.parametrize(("what", "task"), [("failure", "copy_to_old_archive"), ("report", "nightly_report")])
def test_experiment_enqueues_its_task(client, what, task):
    assert client.post(reverse("photos:experiment"), {"what": what}).status_code == 302

    assert Task.objects.get().task_type.endswith(f".{task}")


def test_unknown_experiment_is_refused(client):
    assert client.post(reverse("photos:experiment"), {"what": "nonsense"}).status_code == 400
