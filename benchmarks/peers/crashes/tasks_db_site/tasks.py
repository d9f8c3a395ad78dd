"""The task; django-tasks-db knows no second attempt, and documents nothing for a worker that died."""

from __future__ import annotations

from benchmarks.peers.crashes.effects import work_in_own_transaction

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task  # type: ignore[no-redef]


@task
def pay(number: int, seconds: float) -> None:
    work_in_own_transaction(number, seconds)


def enqueue(number: int, seconds: float) -> None:
    pay.enqueue(number, seconds)
