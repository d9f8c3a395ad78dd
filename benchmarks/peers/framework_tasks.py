"""Tasks of the sites of django-tasks-db and django-ox, which both are backends of Django's task framework."""

from __future__ import annotations

from benchmarks import notes

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task  # type: ignore[no-redef]


@task
def noop(number: int) -> None:
    pass


@task
def note(sent: float) -> None:
    notes.write(sent)
