"""Data and actions of the album pages: the progress of an album, and messages to its actor."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from demo_project.photos.actors import Discard, Publish
from demo_project.photos.gallery import reason
from demo_project.photos.models import Album, ContactSheet
from jobqueue import TaskFinished, TaskNotFound, send
from jobqueue.models import Task

State, Status = Album.State, Task.Status
DECISIONS = {"publish": Publish(), "discard": Discard()}
ENDED_BADLY = (Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """The progress of an album. tasks, done: children of its actor."""

    album: Album
    sheet: ContactSheet | None
    actor: Task | None
    tasks: int
    done: int
    photos: int
    shown: int

    @property
    def is_busy(self) -> bool:
        """Return whether its actor or a child works. An actor that waits for the visitor does not."""
        return self.actor is not None and not self.actor.is_finished and not self.is_waiting

    @property
    def is_waiting(self) -> bool:
        return self.album.state == State.WAITING and self.actor is not None and self.actor.status == Status.SUSPENDED

    @property
    def is_open(self) -> bool:
        """Return whether the actor still accepts a decision."""
        return not self.album.is_decided and self.actor is not None and not self.actor.is_finished

    @property
    def can_be_published(self) -> bool:
        """Return whether there is a photo to show, or there may be one later."""
        return self.is_open and (self.shown > 0 or self.album.state == State.GATHERING)

    @property
    def problem(self) -> str:
        if self.album.is_decided or (self.actor is not None and self.actor.status not in ENDED_BADLY):
            return ""
        if self.actor is None:
            return "Its actor was pruned, so a decision is no longer possible."
        return f"Its actor has ended: {reason(self.actor) if self.actor.errors else 'it was cancelled'}"


def stand(album: Album) -> Stand:
    """Read an album, its photos, its actor and its children."""
    photos = album.photos.aggregate(photos=Count("pk"), shown=Count("pk", filter=~Q(thumbnail="")))
    actor, counted = None, {"tasks": 0, "done": 0}
    if album.task_id:
        actor = Task.objects.filter(pk=album.task_id).first()
        counted = Task.objects.filter(parent_id=album.task_id).aggregate(
            tasks=Count("pk"), done=Count("pk", filter=Q(finished_at__isnull=False))
        )
    sheet = ContactSheet.objects.filter(album=album).first()
    return Stand(album=album, sheet=sheet, actor=actor, **counted, **photos)


def decide(album: Album, what: str) -> tuple[bool, str]:
    """
    Send the visitor's decision to the album's actor. Return whether it was accepted, and a text to show.

    A second click on the same button sends no second message. Raises KeyError for an unknown decision.
    """
    decision = DECISIONS[what]
    if album.task_id is None:
        return False, too_late(album)
    if what == "publish" and album.state == State.WAITING and not album.photos.exclude(thumbnail="").exists():
        return False, "None of the photos can be shown: there is nothing to publish."
    try:
        sent = send(album.task_id, decision, dedupe_key=what)
    except (TaskFinished, TaskNotFound):
        album.refresh_from_db()
        return False, too_late(album)
    if sent is None:
        album.refresh_from_db()
        if album.state in (State.PUBLISHED, State.DISCARDED):
            return False, too_late(album)
        return False, "We heard you the first time. The album is working on it."
    return True, "The album will be published." if what == "publish" else "The album will be discarded."


def too_late(album: Album) -> str:
    match album.state:
        case State.PUBLISHED:
            return "Too late: this album is published already."
        case State.DISCARDED:
            return "Too late: this album was discarded already."
    return "Nobody listens any more: the album's actor has ended. An administrator can requeue it."
