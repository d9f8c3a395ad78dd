from __future__ import annotations

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from demo_project.photos.actors import PATIENCE
from demo_project.photos.models import Album
from jobqueue import cancel
from jobqueue.models import InboxMessage, Task
from jobqueue.testing import advance, poll_once, run_until_idle
from tests.demo.pictures import picture

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def page_of(client: Client, album: Album) -> str:
    return client.get(album.get_absolute_url()).content.decode()


def click(client: Client, album: Album, what: str) -> str:
    answer = client.post(reverse("photos:decide", args=[album.pk]), {"what": what}, follow=True)
    assert answer.redirect_chain == [(album.get_absolute_url(), 302)]
    return answer.content.decode()


def test_page_shows_progress_of_the_actor(client, make_album):
    album = make_album(picture(), picture())
    assert "actor is about to start" in page_of(client, album)

    poll_once(str(album.task_id))
    poll_once(Task.objects.filter(parent=album.task_id)[0])

    html = page_of(client, album)
    assert "1 of 4 tasks have reported" in html
    assert '<progress max="4" value="1"' in html
    assert "Publish when ready" in html
    assert " data-busy" in html


def test_page_of_complete_album_asks_for_a_decision(client, make_album):
    album = make_album(picture(), b"no picture")
    run_until_idle()

    html = page_of(client, album)

    assert "1 photo is ready, 1 cannot be shown." in html
    assert html.count('name="what"') == 2
    assert 'data-busy="4000"' in html  # the page shows a reminder without a reload
    assert reverse("admin:jobqueue_task_change", args=[album.task_id]) in html


def test_reminder_is_visible_on_the_page_and_in_the_list(client, make_album):
    album = make_album(picture())
    run_until_idle()
    assert "still waits" not in page_of(client, album)
    advance(PATIENCE[0])
    run_until_idle()

    assert "this album still waits for your decision" in page_of(client, album)
    assert "reminded 1 time" in client.get(reverse("photos:albums")).content.decode()
    assert "for your decision" in client.get("/").content.decode()


def test_buttons_publish_and_discard(client, make_album):
    album, other = make_album(picture()), make_album(picture())
    run_until_idle()

    assert "The album will be published." in click(client, album, "publish")
    assert "The album will be discarded." in click(client, other, "discard")
    run_until_idle()

    html = page_of(client, album)
    assert "1 photo on the contact sheet" in html
    assert reverse("photos:contact-sheet", args=[album.pk]) in html
    assert 'name="what"' not in html
    assert " data-busy" not in html
    html = page_of(client, other)
    assert "its photos and their files are gone" in html
    assert 'class="card' not in html


def test_live_answer_removes_photos_of_discarded_album(client, make_album):
    album = make_album(picture())
    photo = album.photos.get()
    live = reverse("photos:album-live", args=[album.pk])
    run_until_idle()
    assert f'id="photo-{photo.pk}"' in client.get(live, {"photo": photo.pk}).content.decode()
    click(client, album, "discard")
    run_until_idle()

    html = client.get(live, {"photo": photo.pk}).content.decode()

    assert '<ul class="gallery" id="gallery" data-piece></ul>' in html
    assert f'id="album-{album.pk}"' in html


def test_live_answer_has_only_photos_of_its_album(client, make_album):
    album, other = make_album(picture()), make_album(picture())

    html = client.get(reverse("photos:album-live", args=[album.pk]), {"photo": other.photos.get().pk}).content

    assert b"data-photo" not in html


def test_second_click_sends_no_second_message(client, make_album):
    album = make_album(picture())
    run_until_idle()

    click(client, album, "publish")
    assert "We heard you the first time" in click(client, album, "publish")

    assert InboxMessage.objects.count() == 1


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [("publish", "discard", "is published already"), ("discard", "publish", "was discarded already")],
)
def test_late_click_is_explained(client, make_album, first, second, text):
    album = make_album(picture())
    run_until_idle()
    click(client, album, first)
    run_until_idle()

    assert f"Too late: this album {text}." in click(client, album, second)


def test_page_of_cancelled_actor_has_no_decision_buttons(client, make_album):
    album = make_album(picture())
    cancel(album.task_id, backend="default")

    html = page_of(client, album)

    assert "Its actor has ended: it was cancelled" in html
    assert 'name="what"' not in html
    assert "Nobody listens any more" in click(client, album, "publish")


def test_album_of_bad_photos_can_only_be_discarded(client, make_album):
    album = make_album(b"no picture")
    run_until_idle()

    html = page_of(client, album)
    assert "there is nothing to publish" in html
    assert 'value="publish"' not in html
    assert 'value="discard"' in html
    before = InboxMessage.objects.count()
    assert "will be published" not in click(client, album, "publish")  # from an outdated page
    assert InboxMessage.objects.count() == before

    click(client, album, "discard")
    run_until_idle()
    album.refresh_from_db()
    assert album.state == Album.State.DISCARDED


def test_unknown_decision_is_refused(client, make_album):
    album = make_album(picture())

    assert client.post(reverse("photos:decide", args=[album.pk]), {"what": "burn"}).status_code == 400
    assert client.get(reverse("photos:decide", args=[album.pk])).status_code == 405


def test_decision_needs_a_csrf_token(make_album):
    album = make_album(picture())

    assert (
        Client(enforce_csrf_checks=True).post(f"{album.get_absolute_url()}decide/", {"what": "publish"}).status_code
        == 403
    )


def test_contact_sheet_is_served_as_a_picture(client, make_album):
    album = make_album(picture())
    address = reverse("photos:contact-sheet", args=[album.pk])
    assert client.get(address).status_code == 404
    run_until_idle()
    click(client, album, "publish")
    run_until_idle()

    answer = client.get(address)

    assert answer["Content-Type"] == "image/webp"
    assert b"".join(answer.streaming_content)[8:12] == b"WEBP"


def test_album_list_has_constant_number_of_queries(client, make_album):
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.get(reverse("photos:albums"))
        return len(captured)

    make_album(picture())
    for_one = queries()
    for _ in range(4):
        make_album(picture(), picture())

    assert queries() == for_one


def test_pages_have_no_inline_code(client, make_album):
    """The content security policy blocks inline scripts and styles."""
    album = make_album(picture())
    run_until_idle()

    for address in (album.get_absolute_url(), reverse("photos:albums"), reverse("photos:fibonacci"), "/"):
        html = client.get(address).content.decode()
        assert " style=" not in html
        assert " onclick=" not in html
        assert "<style" not in html
        assert html.count("<script") == html.count('<script src="') == 1
    assert settings.MEDIA_ROOT not in html
