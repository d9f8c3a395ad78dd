"""What the pages show: photos beside the state of their tasks, read in two queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.db.models import Count, Q
from django.utils import timezone

from demo_project.photos.imaging import EXIF_WORDS
from demo_project.photos.models import Photo, Report
from jobqueue.models import Executor, Task

Status = Task.Status
# Tonight's report waits too, but nobody watches the page for it.
SOON = timedelta(minutes=1)
BEAT_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One task of a photo, in words."""

    label: str
    state: str
    words: str
    task_id: UUID | None

    @property
    def is_busy(self) -> bool:
        return self.state in ("waiting", "running", "retrying")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swatch:
    """One stripe of a colour bar that is 1000 units wide."""

    colour: str
    percent: int
    left: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A photo as the gallery shows it."""

    photo: Photo
    steps: list[Step]
    swatches: list[Swatch]

    @property
    def exif(self) -> list[tuple[str, str]]:
        """In our order: jsonb keeps none."""
        return [(name, self.photo.exif[name]) for name in EXIF_WORDS if name in self.photo.exif]

    @property
    def is_busy(self) -> bool:
        return any(step.is_busy for step in self.steps)

    @property
    def state(self) -> str:
        if self.photo.problem or any(step.state == "failed" for step in self.steps):
            return "failed"
        return "busy" if self.is_busy else "done"

    @property
    def problem(self) -> str:
        reasons = (step.words for step in self.steps if step.state == "failed")
        return self.photo.problem or next(reasons, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The line above the photos."""

    photos: int
    waiting: int
    running: int
    later: int
    failed: int
    successful: int
    executors: int
    report: Report | None

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)


def cards(photos: Iterable[Photo]) -> list[Card]:
    shown = list(photos)
    wanted = [task_id for photo in shown for task_id in photo.task_ids]
    found: dict[UUID | None, Task] = {task.pk: task for task in Task.objects.filter(pk__in=filter(None, wanted))}
    return [
        Card(
            photo=photo,
            steps=[
                step("Thumbnail", photo.thumbnail_task_id, found, fallback=bool(photo.thumbnail)),
                step("Colours and facts", photo.facts_task_id, found, fallback=photo.width is not None),
                step("Webhook", photo.notify_task_id, found, fallback=photo.notified_at is not None),
            ],
            swatches=swatches(photo.colours),
        )
        for photo in shown
    ]


def step(label: str, task_id: UUID | None, found: dict[UUID | None, Task], *, fallback: bool) -> Step:
    """Say how a task stands. fallback: whether it has done its work, for when its row was pruned."""
    task = found.get(task_id)
    if task is None:
        state, words = ("done", "done") if fallback else ("failed", "did not finish; its task is no longer kept")
        return Step(label=label, state=state, words=words, task_id=None)
    state, words = in_words(task)
    return Step(label=label, state=state, words=words, task_id=task.pk)


def in_words(task: Task) -> tuple[str, str]:
    tries = len(task.worker_ids)
    match task.status:
        case Status.READY:
            return "waiting", "waits for an executor"
        case Status.SCHEDULED if task.errors:
            return "retrying", f"{reason(task)}; try {tries + 1} of {task.max_attempts} {when(task.wake_at)}"
        case Status.SCHEDULED:
            return "waiting", f"starts {when(task.wake_at)}"
        case Status.RUNNING:
            return "running", "is running" + (f", try {tries + 1}" if tries else "")
        case Status.SUSPENDED:
            return "waiting", "waits for a message"
        case Status.SUCCESSFUL:
            return "done", f"done at try {tries}" if tries > 1 else "done"
        case Status.CANCELLED:
            return "failed", "was cancelled"
        case _:
            return "failed", reason(task)


def reason(task: Task) -> str:
    """What the last error says; its class is for the admin."""
    return str(task.errors[-1].get("message") or "failed") if task.errors else "failed"


def when(moment: datetime | None) -> str:
    seconds = (moment - timezone.now()).total_seconds() if moment else 0
    return f"in {seconds:.0f} s" if seconds >= 0.5 else "at once"


def swatches(colours: Sequence[dict[str, Any]]) -> list[Swatch]:
    """Lay the colours side by side over the whole bar; a rare one stays wide enough to be seen."""
    shares = [max(0.02, float(colour["share"])) for colour in colours]
    total = sum(shares) or 1.0
    edges = [round(1000 * sum(shares[:end]) / total) for end in range(len(shares) + 1)]
    return [
        Swatch(colour=str(colour["hex"]), percent=round(100 * colour["share"]), left=left, width=right - left)
        for colour, (left, right) in zip(colours, pairwise(edges), strict=True)
    ]


def summary() -> Summary:
    now = timezone.now()
    soon = Q(status=Status.SCHEDULED, wake_at__lte=now + SOON)
    counted = Task.objects.aggregate(
        waiting=Count("pk", filter=Q(status=Status.READY) | soon),
        running=Count("pk", filter=Q(status=Status.RUNNING)),
        later=Count("pk", filter=Q(status__in=[Status.SCHEDULED, Status.SUSPENDED]) & ~soon),
        failed=Count("pk", filter=Q(status=Status.FAILED)),
        successful=Count("pk", filter=Q(status=Status.SUCCESSFUL)),
    )
    return Summary(photos=Photo.objects.count(), executors=executors_alive(), report=Report.objects.first(), **counted)


def executors_alive() -> int:
    silent = timezone.now() - timedelta(seconds=BEAT_SECONDS)
    return Executor.objects.filter(state=Executor.State.RUNNING, heartbeat__gt=silent).count()
