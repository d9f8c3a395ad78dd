"""The report at the end of `make demo`: tables of what happened, and a check of the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Count, Q, QuerySet
from django.template.defaultfilters import pluralize

from demo_project.photos import gallery
from demo_project.photos.actors import Fibonacci
from demo_project.photos.fibonacci import leaves
from demo_project.photos.models import Album, ContactSheet, Photo
from jobqueue.models import Schedule, Task
from jobqueue.operations.schedules import RecordedTick, describe_schedule, recent_ticks
from jobqueue.values.states import FINAL
from tools.tables import seconds, table

Status = Task.Status
WANTED = {
    "copy_to_old_archive": Status.FAILED,
    "notify": Status.SUCCESSFUL,
    "tell_followers": Status.SUCCESSFUL,
    "nightly_report": Status.SUCCESSFUL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The tasks and photos of one run of the demo: everything created after its start, without tasks of schedules."""

    began: datetime

    @property
    def tasks(self) -> QuerySet[Task]:
        return Task.objects.filter(enqueued_at__gte=self.began, schedule=None)

    @property
    def photos(self) -> QuerySet[Photo]:
        return Photo.objects.filter(uploaded_at__gte=self.began)

    @property
    def albums(self) -> QuerySet[Album]:
        return Album.objects.filter(created_at__gte=self.began)

    @property
    def undecided(self) -> QuerySet[Album]:
        return self.albums.filter(state=Album.State.WAITING)

    def to_publish(self) -> QuerySet[Album]:
        """Return the albums that wait for a decision and have photos to show."""
        return self.undecided.filter(photos__thumbnail__gt="").distinct()

    def waiting(self) -> QuerySet[Task]:
        """Return the tasks to wait for: no album without a photo to show."""
        hopeless = Q(pk__in=self.undecided.exclude(photos__thumbnail__gt="").values("task_id"))
        return self.tasks.filter(finished_at=None).exclude(hopeless)

    def unfinished(self) -> dict[str, int]:
        """Count the tasks of waiting() by the label of their status."""
        counted = self.waiting().order_by().values_list("status").annotate(Count("pk"))
        return {Status(status).label.lower(): count for status, count in counted}


def database_time() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now


def report_lines(run: Run) -> Iterator[str]:
    """Yield the lines of the report."""
    tasks = list(run.tasks)
    yield from table(
        ("task", "successful", "failed", "later", "attempts"),
        by_type(tasks),
    )
    yield ""
    statuses = Counter(task.status for task in tasks)
    yield "By status:   " + ", ".join(
        f"{count} {Status(status).label.lower()}" for status, count in statuses.most_common()
    )
    yield f"Throughput:  {throughput(tasks)}"
    yield f"Albums:      {albums_in_words(run)}"
    yield from (f"Fibonacci:   {line}" for line in trees_in_words(tasks))
    yield ""
    yield from table(("schedule", "when", "next tick", "last tick"), schedules())
    failed = [task for task in tasks if task.status == Status.FAILED]
    if failed:
        names = {str(photo.pk): photo.name for photo in run.photos}
        rows = [(names.get(argument(task), "-"), short(task.task_type), gallery.reason(task)) for task in failed]
        yield ""
        yield from table(("failed", "task", "reason"), sorted(rows))


def schedules() -> list[tuple[str, ...]]:
    rows = list(Schedule.objects.active().order_by("name"))
    recent = recent_ticks(rows, 1)
    return [
        (
            row.name,
            describe_schedule(row),
            f"{row.next_at:%Y-%m-%d %H:%M:%S}" if row.next_at else "-",
            ", ".join(status_in_words(tick) for tick in recent[row.pk]) or "-",
        )
        for row in rows
    ]


def status_in_words(record: RecordedTick) -> str:
    return str(Status(record.status).label if record.has_task else record.status).lower()


def albums_in_words(run: Run) -> str:
    states = Counter(Album.State(album.state).label for album in run.albums)
    sheets = ContactSheet.objects.filter(album__in=[album.pk for album in run.albums])
    photos = sum(sheet.photos for sheet in sheets)
    return (
        ", ".join(f"{count} {words}" for words, count in states.most_common())
        + f"; {photos} photo{pluralize(photos)} on {len(sheets)} contact sheet{pluralize(len(sheets))}"
    )


def trees_in_words(tasks: Sequence[Task]) -> Iterator[str]:
    nodes = [task for task in tasks if task.task_type == Fibonacci.task.task_type]
    for root in nodes:
        if root.parent_id is None:
            took = seconds((root.finished_at - root.enqueued_at).total_seconds()) if root.finished_at else "no end"
            polls = sum(task.polls for task in nodes)
            yield f"fib({root.args[0]}) = {root.return_value}, by {len(nodes)} actors in {polls} polls and {took}"


def by_type(tasks: Sequence[Task]) -> list[tuple[str, ...]]:
    types = sorted({task.task_type for task in tasks})
    rows = [figures(short(name), [task for task in tasks if task.task_type == name]) for name in types]
    return [*rows, figures("all", tasks)]


def figures(name: str, tasks: Sequence[Task]) -> tuple[str, ...]:
    counts = Counter(task.status for task in tasks)
    later = sum(count for status, count in counts.items() if status not in FINAL)
    attempts = sum(attempts_of(task) for task in tasks)
    return (name, *map(str, (counts[Status.SUCCESSFUL], counts[Status.FAILED], later, attempts)))


def attempts_of(task: Task) -> int:
    """Return the number of attempts: successful polls and failed attempts."""
    return int(task.polls) + len(task.errors)


def throughput(tasks: Sequence[Task]) -> str:
    ends = [task.finished_at for task in tasks if task.finished_at]
    if not ends:
        return "nothing has finished"
    took = (max(ends) - min(task.enqueued_at for task in tasks)).total_seconds()
    attempts = sum(attempts_of(task) for task in tasks)
    return f"{len(ends)} tasks in {took:.1f} s, {attempts / took:.1f} attempts a second"


def short(task_type: str) -> str:
    return task_type.rpartition(".")[2]


def argument(task: Task) -> str:
    return str(task.args[0]) if task.args else ""


def complaints(run: Run, sent: int, is_picture: Callable[[Photo], bool]) -> Iterator[str]:
    """Yield a sentence for each wrong result."""
    photos = list(run.photos)
    good = {photo.pk for photo in photos if is_picture(photo)}
    if len(photos) != sent:
        yield f"{sent} photos were sent, but {len(photos)} were saved."
    for photo in photos:
        if (photo.pk in good) != bool(photo.thumbnail and photo.width) or (photo.pk in good) == bool(photo.problem):
            yield f"{photo.name}: its thumbnail, its facts or its problem are wrong."
        if photo.notified_at is None:
            yield f"{photo.name}: the webhook was not notified."
    for album in run.albums:
        yield from complaints_about_album(
            album, sum(photo.album_id == album.pk for photo in photos if photo.pk in good)
        )
    for task in run.tasks:
        wanted = WANTED.get(short(task.task_type))
        if wanted and task.status != wanted:
            yield f"{task} is {task.status}, not {wanted}: {gallery.reason(task)}"
    yield from complaints_about_tree(run.tasks.filter(task_type=Fibonacci.task.task_type))


def complaints_about_album(album: Album, good: int) -> Iterator[str]:
    wanted = Album.State.PUBLISHED if good else Album.State.WAITING
    if album.state != wanted:
        yield f"The {album} is {album.state}, not {wanted}."
    sheet = ContactSheet.objects.filter(album=album).first()
    if good and (sheet is None or sheet.photos != good):
        yield f"The {album} has {good} photos to show, and {sheet.photos if sheet else 'none'} on its contact sheet."


def complaints_about_tree(nodes: Iterable[Task]) -> Iterator[str]:
    """Check the tree. One run of the demo starts one tree."""
    listed = list(nodes)
    for root in (task for task in listed if task.parent_id is None):
        expected = leaves(root.args[0])
        if root.return_value != expected or len(listed) != 2 * expected - 1:
            yield f"fib({root.args[0]}) is {root.return_value}, by {len(listed)} actors: {root.status}"
