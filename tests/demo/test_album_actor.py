"""The album's actor: its polls as values, and its runs on the database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.core.files.storage import default_storage

from demo_project.photos import actors, imaging, tasks
from demo_project.photos.actors import PATIENCE, AlbumState, Discard, Publish
from demo_project.photos.models import Album, ContactSheet, Photo
from jobqueue import Kind, Suspend, send
from jobqueue.models import InboxMessage, Task
from jobqueue.testing import advance, context, message, poll_once, run_until_idle
from tests.demo.pictures import picture

pytestmark = pytest.mark.slow

ALBUM, PHOTOS = "an-album", ["one", "two"]
ONE, TWO = uuid4(), uuid4()


def poll(state: AlbumState, *inbox: object, **values: object):
    return actors.Album().poll(context(actors.Album, state=state, inbox=inbox, **values), ALBUM, PHOTOS)


def at_work(**others: str) -> AlbumState:
    return AlbumState(pending={str(ONE): "one", str(TWO): "two", **others})


def thumbnail_of(sender: UUID, path: str):
    return message({"thumbnail": path, "bytes": 1}, kind=Kind.CHILD_SUCCESSFUL, sender=sender)


def failure_of(sender: UUID, reason: str):
    return message({"message": reason}, kind=Kind.CHILD_FAILED, sender=sender)


def stored_files() -> list[Path]:
    return [path for path in Path(settings.MEDIA_ROOT).rglob("*") if path.is_file()]


def task_of(album: Album) -> Task:
    return Task.objects.get(pk=str(album.task_id))


def test_first_poll_spawns_both_tasks_of_every_photo():
    state = AlbumState()

    actions = poll(state)

    *children, last = actions
    assert [(child.target.task_type, child.args) for child in children] == [
        (tasks.make_thumbnail.task_type, ("one",)),
        (tasks.extract_facts.task_type, ("one",)),
        (tasks.make_thumbnail.task_type, ("two",)),
        (tasks.extract_facts.task_type, ("two",)),
    ]
    assert {child.target.concurrency.key for child in children} == {"album-an-album"}
    assert last == Suspend()
    assert state.pending == {str(child.id): child.args[0] for child in actions[:-1]}


def test_results_are_collected_while_other_children_run():
    state = at_work(third="two")

    assert poll(state, thumbnail_of(ONE, "a.webp"), failure_of(TWO, "damaged")) == Suspend()

    assert (state.thumbnails, state.failures, state.pending) == (
        {"one": "a.webp"},
        {"two": "damaged"},
        {"third": "two"},
    )


def test_cancelled_child_counts_as_failed_photo():
    state = at_work()

    poll(state, message({"width": 3}, kind=Kind.CHILD_SUCCESSFUL, sender=ONE))
    poll(state, message(kind=Kind.CHILD_CANCELLED, sender=TWO))

    assert (state.pending, state.thumbnails, state.failures) == ({}, {}, {"two": "Its task was cancelled."})


def test_early_publish_decision_waits_for_all_results():
    state = at_work()

    assert poll(state, Publish(), Discard()) == Suspend()

    assert state.decision == Publish()  # the first one
    assert state.pending


def test_invalid_decision_is_refused():
    with pytest.raises(ValueError, match="burn"):
        context(actors.Album, inbox=[{"type": "burn"}])


def test_wake_without_messages_suspends_again():
    state = AlbumState(pending={}, thumbnails={"one": "a.webp"}, asked=1)

    assert poll(state) == Suspend(timeout=PATIENCE[0])


def test_album_without_photos_cannot_be_published():
    state = AlbumState(pending={}, failures={"one": "damaged", "two": "damaged"}, asked=2)

    assert poll(state, Publish()) == Suspend(timeout=PATIENCE[1])

    assert state.decision is None


@pytest.mark.django_db
class TestOnTheDatabase:
    def test_complete_album_waits_for_a_decision(self, make_album):
        album = make_album(picture(), picture())

        run_until_idle()

        album.refresh_from_db()
        assert album.state == Album.State.WAITING
        task = task_of(album)
        assert task.status == Task.Status.SUSPENDED
        assert task.wake_at is not None
        assert Task.objects.successful().filter(parent=task).count() == 4

    def test_album_with_bad_photo_publishes_the_others(self, make_album):
        album = make_album(picture(), b"no picture")
        bad = album.photos.get(size=len(b"no picture"))
        run_until_idle()

        send(album.task_id, Publish())
        run_until_idle()

        album.refresh_from_db()
        assert album.state == Album.State.PUBLISHED
        assert album.contact_sheet.photos == 1
        assert list(album.failures) == [str(bad.pk)]
        assert album.failures[str(bad.pk)].startswith("This is not a picture")
        assert (task_of(album).return_value or {})["failures"] == album.failures

    def test_contact_sheet_shows_every_thumbnail(self, make_album):
        album = make_album(*[picture((90, 60))] * 3)
        run_until_idle()

        send(album.task_id, Publish())
        run_until_idle()

        sheet = ContactSheet.objects.get(album=album)
        with default_storage.open(sheet.path) as file, imaging.opened(file.read()) as image:
            assert image.size == (sheet.width, sheet.height)
        assert sheet.photos == 3
        assert task_of(album).return_value == {"contact_sheet": sheet.path, "photos": 3, "failures": {}}

    def test_failed_contact_sheet_leaves_no_row_and_no_state(self, make_album, monkeypatch):
        album = make_album(picture())
        run_until_idle()
        before = task_of(album)
        send(album.task_id, Publish())

        def fail(*args: object) -> None:
            assert ContactSheet.objects.exists()
            raise RuntimeError("the last step fails")

        with monkeypatch.context() as broken:
            broken.setattr(actors, "decided", fail)
            failed = poll_once(str(album.task_id))

        assert str(failed.error) == "the last step fails"
        album.refresh_from_db()
        after = task_of(album)
        assert not ContactSheet.objects.exists()
        assert album.state == Album.State.WAITING
        assert (after.status, after.inner_state) == (Task.Status.SCHEDULED, before.inner_state)
        assert InboxMessage.objects.filter(task=after, consumed_at=None).count() == 1

        advance(timedelta(minutes=1))
        run_until_idle()

        album.refresh_from_db()
        assert (album.state, album.contact_sheet.photos) == (Album.State.PUBLISHED, 1)

    def test_discarded_album_removes_its_photos_and_files(self, make_album):
        album, other = make_album(picture(), picture()), make_album(picture())
        run_until_idle()

        send(album.task_id, Discard())
        run_until_idle()

        album.refresh_from_db()
        assert album.state == Album.State.DISCARDED
        assert [photo.album for photo in Photo.objects.all()] == [other]
        assert len(stored_files()) == 2  # original and thumbnail of the other album
        assert task_of(album).return_value == {"discarded": 2}

    def test_discarded_album_cancels_its_children(self, make_album):
        album = make_album(picture(), picture())
        poll_once(str(album.task_id))
        send(album.task_id, Discard())

        poll_once(str(album.task_id))
        run_until_idle()

        assert Task.objects.cancelled().filter(parent=album.task_id).count() == 4
        assert stored_files() == []
        assert task_of(album).status == Task.Status.SUCCESSFUL

    def test_files_are_deleted_after_the_last_child_has_ended(self, make_album):
        album = make_album(picture())
        poll_once(str(album.task_id))
        thumbnail = Task.objects.filter(task_type=tasks.make_thumbnail.task_type)
        thumbnail.update(status=Task.Status.RUNNING, executor_id=uuid4())
        send(album.task_id, Discard())

        run_until_idle()

        assert task_of(album).status == Task.Status.SUSPENDED
        assert not Photo.objects.exists()
        assert len(stored_files()) == 1

    def test_reminders_come_at_growing_intervals(self, make_album):
        album = make_album(picture())
        run_until_idle()
        reminders = []

        for patience in (*PATIENCE, PATIENCE[-1]):
            advance(patience - timedelta(seconds=20))
            run_until_idle()
            album.refresh_from_db()
            reminders.append(album.reminders)
            advance(timedelta(seconds=20))
            run_until_idle()

        album.refresh_from_db()
        assert reminders == [0, 1, 2, 3]
        assert album.reminders == 4
        assert album.reminded_at is not None
        assert album.state == Album.State.WAITING
