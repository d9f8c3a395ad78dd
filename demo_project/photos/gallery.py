"""Data of the gallery: photos and the state of their tasks, read in two queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, Q
from django.utils import timezone

from demo_project.photos import tasks
from demo_project.photos.models import Album, Photo, Report
from jobqueue.models import Executor, Heartbeat, Task

Status = Task.Status
# A task that is due later waits, too, but the page does not count it as busy.
SOON = timedelta(minutes=1)
HEARTBEAT_SECONDS = 30
THUMBNAIL, FACTS, WEBHOOK = tasks.make_thumbnail.task_type, tasks.extract_facts.task_type, tasks.notify.task_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One task of a photo, as the page shows it."""

    label: str
    state: str
    words: str
    task_id: UUID | None

    @property
    def is_busy(self) -> bool:
        return self.state in ("waiting", "running", "retrying")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A photo as the gallery shows it."""

    photo: Photo
    steps: list[Step]

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
    """The figures above the photos."""

    photos: int
    waiting: int
    running: int
    later: int
    suspended: int
    failed: int
    successful: int
    executors: int
    undecided: int
    report: Report | None

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)


def cards(photos: Iterable[Photo]) -> list[Card]:
    """Return the cards of photos. The photos must be read together with their albums."""
    listed = list(photos)
    tasks = tasks_of(listed)
    return [
        Card(
            photo=photo,
            steps=[
                step("Thumbnail", photo, tasks.get((THUMBNAIL, str(photo.pk))), is_done=bool(photo.thumbnail)),
                step("Size and format", photo, tasks.get((FACTS, str(photo.pk))), is_done=photo.width is not None),
                step("Webhook", photo, tasks.get((WEBHOOK, str(photo.pk))), is_done=photo.notified_at is not None),
            ],
        )
        for photo in listed
    ]


def tasks_of(photos: Sequence[Photo]) -> dict[tuple[str, str], Task]:
    """Return the tasks of photos by task type and photo id: children of the album's actor, and webhook calls."""
    children = Q(
        parent_id__in={photo.album.task_id for photo in photos if photo.album.task_id},
        args__0__in=[str(photo.pk) for photo in photos],
    )
    webhooks = Q(pk__in=[photo.notify_task_id for photo in photos if photo.notify_task_id])
    rows = Task.objects.filter(children | webhooks) if photos else []
    return {(task.task_type, str(task.args[0])): task for task in rows}


def step(label: str, photo: Photo, task: Task | None, *, is_done: bool) -> Step:
    """Describe the state of a task. is_done: whether its work is done, in case its row was pruned."""
    if task is not None:
        state, words = in_words(task)
        return Step(label=label, state=state, words=words, task_id=task.pk)
    if is_done:
        state, words = "done", "done"
    elif photo.album.state == Album.State.GATHERING:
        state, words = "waiting", "waits for its album"
    else:
        state, words = "failed", "did not finish, and its task was pruned"
    return Step(label=label, state=state, words=words, task_id=None)


def in_words(task: Task) -> tuple[str, str]:
    tries = len(task.worker_ids)
    match task.status:
        case Status.READY:
            return "waiting", "waits for an executor"
        case Status.BLOCKED:
            return "waiting", "waits for its turn"
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
    """Return the message of the last error. Only the admin shows its class."""
    return str(task.errors[-1].get("message") or "failed") if task.errors else "failed"


def when(moment: datetime | None) -> str:
    seconds = (moment - timezone.now()).total_seconds() if moment else 0
    return f"in {seconds:.0f} s" if seconds >= 0.5 else "at once"


def summary() -> Summary:
    now = timezone.now()
    soon = Q(status=Status.SCHEDULED, wake_at__lte=now + SOON)
    # Tasks of schedules are no work of visitors, and there is always another one.
    counted = Task.objects.filter(schedule=None).aggregate(
        waiting=Count("pk", filter=Q(status__in=[Status.READY, Status.BLOCKED]) | soon),
        running=Count("pk", filter=Q(status=Status.RUNNING)),
        later=Count("pk", filter=Q(status=Status.SCHEDULED) & ~soon),
        suspended=Count("pk", filter=Q(status=Status.SUSPENDED)),
        failed=Count("pk", filter=Q(status=Status.FAILED)),
        successful=Count("pk", filter=Q(status=Status.SUCCESSFUL)),
    )
    return Summary(
        photos=Photo.objects.count(),
        executors=executors_alive(),
        undecided=Album.objects.filter(state=Album.State.WAITING).count(),
        report=Report.objects.first(),
        **counted,
    )


def executors_alive() -> int:
    silent = timezone.now() - timedelta(seconds=HEARTBEAT_SECONDS)
    return Heartbeat.objects.filter(state=Executor.State.RUNNING, at__gt=silent).count()
