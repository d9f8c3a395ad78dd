"""The long-lived work: an album that waits for its visitor's decision, and a wasteful way to a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from django.utils import timezone

from demo_project.photos import files, imaging, models, tasks
from demo_project.photos.models import contact_sheet_path, original_file, thumbnail_path
from jobqueue import Actor, Done, GiveUp, Kind, PollContext, Sleep, Spawn, Suspend, cancel

# Between two reminders; the last one is repeated for as long as nobody decides.
PATIENCE = (timedelta(seconds=30), timedelta(minutes=10), timedelta(days=1))
ENDS = (Kind.CHILD_SUCCESSFUL, Kind.CHILD_FAILED, Kind.CHILD_CANCELLED)


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Make the contact sheet and show it."""


class Discard(msgspec.Struct, frozen=True, tag="discard"):
    """Remove the photos."""


@dataclass(kw_only=True)
class AlbumState:
    """
    What an album's actor remembers.

    pending: the photo of each child at work; None before there are any. thumbnails, failures: by photo.
    asked: how often the visitor was asked to decide.
    """

    pending: dict[str, str] | None = None
    thumbnails: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    decision: Publish | Discard | None = None
    asked: int = 0
    is_cleared: bool = False


class Album(Actor[AlbumState], queue_name="albums", priority=10, timeout=120):
    """
    Gather what the tasks of an upload find out, wait for the visitor's word, then publish or discard.

    Each change of the album's row is committed together with the actor's own state. Somebody waits for
    it, and its polls are short: hence the priority over the pictures.
    """

    State = AlbumState
    Message = Publish | Discard

    def poll(self, context: PollContext[AlbumState], album_id: str, photo_ids: list[str]) -> Any:
        state = context.state
        if state.pending is None:
            return start(state, photo_ids)
        gather(state, context)
        for message in context.inbox.take(Publish, Discard):
            state.decision = state.decision or message.body
        match state.decision:
            case Discard():
                return discard(state, album_id, photo_ids)
            case _ if state.pending:
                return Suspend()
            case Publish() if state.thumbnails:
                return publish(state, album_id, photo_ids)
        state.decision = None  # there is nothing to publish
        if state.asked == 0 or context.timed_out:
            return partial(ask, state, album_id)
        return Suspend(timeout=patience(state))


def start(state: AlbumState, photo_ids: Sequence[str]) -> list[Any]:
    children = [Spawn(task, pk) for pk in photo_ids for task in (tasks.make_thumbnail, tasks.extract_facts)]
    state.pending = {str(child.id): child.args[0] for child in children}
    return [*children, Suspend()]


def gather(state: AlbumState, context: PollContext[AlbumState]) -> None:
    """Take in what ended children report."""
    assert state.pending is not None
    for message in context.inbox.take(*ENDS):
        photo_id = state.pending.pop(str(message.sender), None)
        if photo_id is None:
            continue
        match message.kind, message.body:
            case Kind.CHILD_SUCCESSFUL, {"thumbnail": path}:
                state.thumbnails[photo_id] = path
            case Kind.CHILD_FAILED, {"message": reason}:
                state.failures[photo_id] = reason
            case Kind.CHILD_CANCELLED, _:
                state.failures.setdefault(photo_id, "Its task was cancelled.")


def patience(state: AlbumState) -> timedelta:
    """How long the visitor may think before the next reminder."""
    return PATIENCE[min(state.asked, len(PATIENCE)) - 1]


def ask(state: AlbumState, album_id: str) -> Suspend:
    """Say that all is there, the first time; later, remind."""
    album = models.Album.objects.filter(pk=album_id)
    if state.asked == 0:
        album.update(state=models.Album.State.WAITING, failures=state.failures)
    else:
        album.update(reminders=state.asked, reminded_at=timezone.now())
    state.asked += 1
    return Suspend(timeout=patience(state))


def publish(state: AlbumState, album_id: str, photo_ids: Sequence[str]) -> Any:
    """Compose the contact sheet outside of any transaction; its row and our end are one."""
    paths = [state.thumbnails[pk] for pk in photo_ids if pk in state.thumbnails]
    sheet, (width, height) = imaging.contact_sheet([partial(files.read, path) for path in paths])
    path = contact_sheet_path(album_id)
    files.put(path, sheet)

    def commit() -> Done:
        models.ContactSheet.objects.create(album_id=album_id, path=path, width=width, height=height, photos=len(paths))
        decided(album_id, models.Album.State.PUBLISHED, state)
        return Done({"contact_sheet": path, "photos": len(paths), "failures": state.failures})

    return commit


def discard(state: AlbumState, album_id: str, photo_ids: Sequence[str]) -> Any:
    """Take the rows away, call the children off, and remove the files when none of them can write any more."""
    if not state.is_cleared:
        return partial(clear, state, album_id)
    if state.pending:
        return Suspend()
    files.remove(path(pk) for pk in photo_ids for path in (original_file, thumbnail_path))
    return Done({"discarded": len(photo_ids)})


def clear(state: AlbumState, album_id: str) -> Suspend | None:
    models.Photo.objects.filter(album_id=album_id).delete()
    decided(album_id, models.Album.State.DISCARDED, state)
    cancel(list(state.pending or ()), backend=Album.task.backend)
    state.is_cleared = True
    return Suspend() if state.pending else None


def decided(album_id: str, how: models.Album.State, state: AlbumState) -> None:
    album = models.Album.objects.filter(pk=album_id)
    album.update(state=how, decided_at=timezone.now(), failures=state.failures)


@dataclass
class FibonacciState:
    total: int = 0
    pending: int | None = None


class Fibonacci(Actor[FibonacciState]):
    """Two children for each step, each a task of its own. pause: seconds to rest first, for somebody who watches."""

    State = FibonacciState

    def poll(self, context: PollContext[FibonacciState], n: int, pause: float = 0.0) -> Any:
        state = context.state
        if pause and context.polls == 0:
            return Sleep(timedelta(seconds=pause))
        if state.pending is None:
            if n <= 2:
                return Done(1)
            state.pending = 2
            return Spawn(Fibonacci, n - 1, pause), Spawn(Fibonacci, n - 2, pause), Suspend()
        for message in context.inbox.take():
            if message.kind is not Kind.CHILD_SUCCESSFUL:
                raise GiveUp(f"fib({n}) needs both of its children, and one ended otherwise.")
            state.total += message.body
            state.pending -= 1
        return Suspend() if state.pending else Done(state.total)
