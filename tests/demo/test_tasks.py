from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asgiref.sync import async_to_sync
from django.core.files.storage import default_storage
from django.utils import timezone
from PIL import Image

from demo_project.photos import http, tasks
from demo_project.photos.models import Album, Report
from jobqueue import GiveUp, Retry
from tests.demo.pictures import picture

pytestmark = pytest.mark.django_db


def test_second_run_of_thumbnail_changes_nothing(make_photo):
    photo = make_photo(picture((900, 600)))

    first, second = (tasks.make_thumbnail.call(str(photo.pk)) for _ in range(2))

    photo.refresh_from_db()
    assert first == second
    assert photo.thumbnail == f"thumbnails/{photo.pk}.webp"
    with default_storage.open(photo.thumbnail) as file, Image.open(file) as image:
        assert image.size == (640, 427)


def test_facts_are_written_and_returned(make_photo):
    photo = make_photo(picture((90, 60), colour="#00ff00", file_format="PNG"))

    facts = tasks.extract_facts.call(str(photo.pk))

    photo.refresh_from_db()
    assert (photo.width, photo.height, photo.file_format) == (90, 60, "PNG")
    assert facts == {"width": 90, "height": 60, "file_format": "PNG"}


def test_bad_file_fails_with_the_reason_on_the_photo(make_photo):
    photo = make_photo(b"not a picture at all")

    with pytest.raises(GiveUp, match="This is not a picture"):
        tasks.make_thumbnail.call(str(photo.pk))
    with pytest.raises(GiveUp, match="This is not a picture"):
        tasks.extract_facts.call(str(photo.pk))

    photo.refresh_from_db()
    assert photo.problem.startswith("This is not a picture")
    assert photo.thumbnail == ""


def test_thumbnail_of_repaired_file_clears_the_problem(make_photo):
    photo = make_photo(picture())
    photo.problem = "damaged"
    photo.save()

    tasks.make_thumbnail.call(str(photo.pk))

    photo.refresh_from_db()
    assert photo.problem == ""


def test_missing_file_is_retried(make_photo):
    photo = make_photo(picture())
    default_storage.delete(photo.original.name)

    with pytest.raises(FileNotFoundError):
        tasks.make_thumbnail.call(str(photo.pk))


@pytest.mark.django_db(transaction=True)
def test_webhook_call_succeeds_at_third_attempt(live_server, settings, make_photo):
    settings.SITE_URL = live_server.url
    photo = make_photo(picture())

    with pytest.raises(http.Refused, match="503"):
        tasks.notify.call(str(photo.pk))
    with pytest.raises(Retry, match="429") as later:
        tasks.notify.call(str(photo.pk))
    assert later.value.after == 1
    assert tasks.notify.call(str(photo.pk)) == {"status": 200}

    photo.refresh_from_db()
    assert photo.notified_at is not None


@pytest.mark.django_db(transaction=True)
def test_followers_are_notified_concurrently(live_server, settings):
    settings.SITE_URL = live_server.url
    album = Album.objects.create()

    result = tasks.tell_followers.call(str(album.pk))

    album.refresh_from_db()
    assert result["notified"] == album.followers_notified == tasks.FOLLOWERS
    assert result["seconds"] < tasks.FOLLOWERS * 0.25  # the time of consecutive calls


def context(scheduled_at: datetime | None = None) -> Any:
    return SimpleNamespace(scheduled_at=scheduled_at)


def test_report_of_a_day_is_written_once(make_photo):
    make_photo(picture())
    today = timezone.localdate().isoformat()

    tasks.nightly_report.func(context(), today)
    figures = tasks.nightly_report.func(context(), today)

    assert figures["photos"] == 1
    assert Report.objects.get().figures == figures


def test_scheduled_report_is_about_the_day_before_its_tick(db):
    tasks.nightly_report.func(context(datetime(2026, 3, 1, 2, tzinfo=UTC)))

    assert Report.objects.get().day == date(2026, 2, 28)


def test_probe_of_the_archive_fails_at_some_ticks():
    probe = async_to_sync(cast(Any, tasks.probe_archive.func))
    tick = datetime.fromtimestamp(11 * tasks.PROBE_SECONDS, tz=UTC)

    with pytest.raises(ConnectionError):
        probe(context(tick))
    assert probe(context(tick + timedelta(seconds=tasks.PROBE_SECONDS))) == {"waited_seconds": 0}
