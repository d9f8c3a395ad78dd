"""What the demo adds to the list and the pages of tasks."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import reverse

from jobqueue.admin.extensions import Arguments, TaskLink, task_column, task_links
from jobqueue.models import Task


@task_links
def pages(task: Task, arguments: Arguments) -> Iterator[TaskLink]:
    if album_id := arguments.get("album_id"):
        yield TaskLink("Album", reverse("photos:album", args=[album_id]))
    if photo_id := arguments.get("photo_id"):
        yield TaskLink("Photo", f"{reverse('photos:gallery')}#photo-{photo_id}")


@task_column("photos")
def photos(task: Task, arguments: Arguments) -> int | None:
    return len(arguments["photo_ids"]) if "photo_ids" in arguments else None
