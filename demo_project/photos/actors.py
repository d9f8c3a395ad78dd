"""The actors: an album that waits for the decision of its visitor, and Fibonacci numbers by a tree of tasks."""

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
from jobqueue import Actor, Concurrency, Done, GiveUp, Kind, PollContext, Sleep, Spawn, Suspend, cancel

PICTURES_AT_ONCE = 10  # tasks of an album
# Times between reminders. The last one repeats until the visitor decides.
PATIENCE = (timedelta(seconds=30), timedelta(minutes=10), timedelta(days=1))
ENDS = (Kind.CHILD_SUCCESSFUL, Kind.CHILD_FAILED, Kind.CHILD_CANCELLED)


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Create the contact sheet and show it."""


class Discard(msgspec.Struct, frozen=True, tag="discard"):
    """Remove the photos."""


@dataclass(kw_only=True)
class AlbumState:
    """
    The state of an album's actor.

    pending: the photo of each child that has not ended; None before the children are spawned.
    thumbnails, failures: by photo. asked: how often the actor asked the visitor to decide.
    """

    pending: dict[str, str] | None = None
    thumbnails: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    decision: Publish | Discard | None = None
    asked: int = 0
    is_cleared: bool = False


class Album(Actor[AlbumState], queue_name="albums", priority=10, timeout=120):
    """
    Collect the results of the tasks of an upload, wait for the visitor's decision, then publish or discard.

    Each change of the album's row is committed together with the actor's state. A visitor waits for the
    album, and its polls are short. So it has a higher priority than the pictures.
    """

    State = AlbumState
    Message = Publish | Discard

    def poll(self, context: PollContext[AlbumState], album_id: str, photo_ids: list[str]) -> Any:
        state = context.state
        if state.pending is None:
            return start(state, album_id, photo_ids)
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


def start(state: AlbumState, album_id: str, photo_ids: Sequence[str]) -> list[Any]:
    """Start the tasks of the pictures. The limit keeps an album of a thousand pictures from delaying the others."""
    limit = Concurrency(PICTURES_AT_ONCE, key=f"album-{album_id}", shared="albums")
    tags = [models.album_tag(album_id)]
    of_picture = [task.using(concurrency=limit, tags=tags) for task in (tasks.make_thumbnail, tasks.extract_facts)]
    children = [Spawn(task, pk) for pk in photo_ids for task in of_picture]
    state.pending = {str(child.id): child.args[0] for child in children}
    return [*children, Suspend()]


def gather(state: AlbumState, context: PollContext[AlbumState]) -> None:
    """Store the results of ended children in the state."""
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
    """Return the time until the next reminder."""
    return PATIENCE[min(state.asked, len(PATIENCE)) - 1]


def ask(state: AlbumState, album_id: str) -> Suspend:
    """Ask the visitor to decide; from the second time on, remind."""
    album = models.Album.objects.filter(pk=album_id)
    if state.asked == 0:
        album.update(state=models.Album.State.WAITING, failures=state.failures)
    else:
        album.update(reminders=state.asked, reminded_at=timezone.now())
    state.asked += 1
    return Suspend(timeout=patience(state))


def publish(state: AlbumState, album_id: str, photo_ids: Sequence[str]) -> Any:
    """Create the contact sheet outside of a transaction. Its row and the end of this task commit together."""
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
    """Delete the rows and cancel the children. Remove the files after the last child has ended."""
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
    """Spawn two children for each step. pause: seconds to sleep first, so that a visitor can watch."""

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
                raise GiveUp(f"fib({n}) needs the results of both children, but one ended otherwise.")
            state.total += message.body
            state.pending -= 1
        return Suspend() if state.pending else Done(state.total)
