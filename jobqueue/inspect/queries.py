"""
Reading the task table, however large: every statement stops after a bounded number of rows.

Each status is read in the order of the index that serves it, which no statistics can talk the planner out of.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from jobqueue.engine.base import Engine
from jobqueue.inspect.task_filter import Choice
from jobqueue.models import TaskQuerySet
from jobqueue.records import FINAL, Status

CAP = 10_000  # rows counted; more are "10,000+"
PAGE = 5000  # keys read at a time
ORDER: dict[Status, tuple[str, ...]] = {
    Status.READY: ("queue_name", "rank", "pk"),
    Status.SCHEDULED: ("wake_at",),
    Status.SUSPENDED: ("pk",),
    Status.RUNNING: ("executor_id", "queue_name", "pk"),
    **dict.fromkeys(FINAL, ("finished_at",)),
}


def of_status(engine: Engine, status: Status) -> TaskQuerySet:
    """Select a status in the words of the partial index that serves it, in its order."""
    rows = engine.tasks.filter(status=status)
    if status in FINAL:
        rows = rows.filter(finished_at__isnull=False)
    if status is Status.SCHEDULED:
        rows = rows.filter(wake_at__isnull=False)
    return rows.order_by(*ORDER[status])


def walk(
    rows: TaskQuerySet, columns: tuple[str, ...], choice: Choice, page: int = PAGE
) -> Iterator[tuple[int, list[UUID]]]:
    """
    Walk a status in the order of `columns`: how many rows were looked at, and the ids of those that are chosen.

    Queue and task are compared here and not by the database: for a rare one it would read all in one statement.
    Those of one moment are told apart by their ids, not sorted by them: that made the planner read the whole status.
    """
    last: tuple[Any, ...] = ()
    seen: set[UUID] = set()  # of those at `last`
    while True:
        following = rows.filter(_from(columns, last)).exclude(pk__in=seen) if last else rows
        found = list(following.values_list(*columns, "pk", "queue_name", "task_type")[:page])
        if not found:
            return
        yield len(found), [pk for *_, pk, queue, task_type in found if choice.wants(queue, task_type)]
        before, last = last, found[-1][: len(columns)]
        at_last = {row[len(columns)] for row in found if row[: len(columns)] == last}
        seen = seen | at_last if last == before else at_last


def _from(columns: tuple[str, ...], last: tuple[Any, ...]) -> Q:
    """Say what comes not before a row, in words whose first condition is where the index begins."""
    if len(columns) == 1:
        return Q(**{f"{columns[0]}__gte": last[0]})
    further = Q()
    for place, column in enumerate(columns):
        same = dict(zip(columns[:place], last[:place], strict=True))
        further |= Q(**same, **{f"{column}__gt": last[place]})
    return Q(**{f"{columns[0]}__gte": last[0]}) & further


def newest(
    engine: Engine, status: Status, choice: Choice, since: datetime | None, limit: int
) -> list[tuple[datetime, UUID]]:
    """Give the moments and ids of the last that ended so, among the newest CAP, newest first."""
    rows = of_status(engine, status).order_by("-finished_at")
    rows = rows.filter(finished_at__gte=since) if since is not None else rows
    size = CAP if choice.is_narrow else limit
    found = rows.values_list("finished_at", "pk", "queue_name", "task_type")[:size]
    return [(at, pk) for at, pk, queue, task in found if at is not None and choice.wants(queue, task)][:limit]
