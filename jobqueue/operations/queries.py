"""
Reading the task table, however large: each statement stops after a bounded number of rows.

Each status is read in the order of the index that serves it, so wrong statistics cannot lead the planner elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils.translation import ngettext

from jobqueue.engine import CAP, Count, Engine, count_or_estimate
from jobqueue.models import TaskQuerySet
from jobqueue.operations.formatting import moment_in_words
from jobqueue.values.records import FINAL, Status

PAGE = 5000  # rows per query of walk()
ORDER: dict[Status, tuple[str, ...]] = {
    Status.READY: ("queue_name", "pool", "rank", "pk"),
    Status.BLOCKED: ("pk",),
    Status.SCHEDULED: ("wake_at",),
    Status.AWAITING_CODE: ("queue_name", "task_type", "awaits_code_since", "pk"),
    Status.SUSPENDED: ("pk",),
    Status.RUNNING: ("executor_id", "queue_name", "pk"),
    **dict.fromkeys(FINAL, ("finished_at",)),
}


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """The tasks that a command works on. An empty field selects all of them."""

    statuses: tuple[Status, ...] = ()  # in one of these states
    queues: Collection[str] = ()  # names
    tasks: Collection[str] = ()  # full names, or their last components
    error: str = ""  # the words that chose the causes
    causes: Collection[str] = ()  # fingerprints of errors
    tag: str = ""  # one of the task's tags
    since: datetime | None = None  # of the end; None: at any time

    def matches(self, queue_name: str, task_type: str) -> bool:
        is_task = not self.tasks or task_type in self.tasks or task_type.rpartition(".")[2] in self.tasks
        return is_task and (not self.queues or queue_name in self.queues)

    def __str__(self) -> str:
        names = {"status": self.statuses, "task": self.tasks, "queue": self.queues}
        parts = [f"{name} {' or '.join(values)}" for name, values in names.items() if values]
        parts += [f"tag {self.tag!r}"] if self.tag else []
        parts += [f"error {self.error!r}"] if self.error else []
        parts += [f"since {moment_in_words(self.since)}"] if self.since else []
        return ", ".join(parts)


def many(count: int | Count, noun: str) -> str:
    """Return a number with its noun: 1 executor, 2 executors, 10,000+ tasks."""
    shown = str(count if isinstance(count, Count) else Count(count))
    return f"{shown} {noun}{'' if shown == '1' else 's'}"


def many_tasks(count: int | Count) -> str:
    """Format a number of tasks as many() does, in the active language."""
    shown = count if isinstance(count, Count) else Count(count)
    return ngettext("%(number)s task", "%(number)s tasks", shown.number) % {"number": shown}


def many_executors(count: int) -> str:
    return ngettext("%(number)s executor", "%(number)s executors", count) % {"number": Count(count)}


def count_by(rows: QuerySet[Any], column: str) -> Counter[Any]:
    """Count the first CAP + 1 rows by the values of a column. The ORM cannot group a part of the rows."""
    return Counter(rows.values_list(column, flat=True)[: CAP + 1])


def count_of_status(rows: TaskQuerySet, status: Status, exact: int = 0) -> Count:
    """Count the tasks of a status by the index that counts it with the fewest reads."""
    if status in FINAL:  # in the order of the index: without an order the planner may read the table
        ended = rows.filter(status_condition(status)).order_by("-finished_at")
        return count_or_estimate(ended, rows.filter(status=status), exact)
    return count_or_estimate(rows.filter(status=status).order_by(), exact=exact)


def status_condition(status: str) -> Q:
    """Return the condition for a status in the words of the partial index that serves it."""
    if status in FINAL:
        return Q(status=status, finished_at__isnull=False)
    if status == Status.SCHEDULED:
        return Q(status=status, wake_at__isnull=False)
    return Q(status=status)


def of_status(engine: Engine, status: Status) -> TaskQuerySet:
    """Return the tasks of a status in the order of its index."""
    return engine.db.tasks.filter(status_condition(status)).order_by(*ORDER[status])


def walk(
    rows: TaskQuerySet, columns: tuple[str, ...], task_filter: TaskFilter, page: int = PAGE
) -> Iterator[tuple[int, list[UUID]]]:
    """
    Read a status in the order of `columns`. Yield the number of rows read and the ids of those that match the filter.

    Python compares queue and task: a database would read the whole status in one statement to find rare ones. Among
    rows with equal columns, known ids are excluded; sorting by id as well made the planner sort everything.
    """
    last: tuple[Any, ...] = ()
    seen: set[UUID] = set()  # ids of the rows at `last`
    while True:
        following = rows.filter(_from(columns, last)).exclude(pk__in=seen) if last else rows
        found = list(following.values_list(*columns, "pk", "queue_name", "task_type")[:page])
        if not found:
            return
        yield len(found), [pk for *_, pk, queue, task_type in found if task_filter.matches(queue, task_type)]
        before, last = last, found[-1][: len(columns)]
        at_last = {row[len(columns)] for row in found if row[: len(columns)] == last}
        seen = seen | at_last if last == before else at_last


def _from(columns: tuple[str, ...], last: tuple[Any, ...]) -> Q:
    """Return the condition for rows that do not precede `last`. It begins with where the index scan starts."""
    if len(columns) == 1:
        return Q(**{f"{columns[0]}__gte": last[0]})
    further = Q()
    for place, column in enumerate(columns):
        same = dict(zip(columns[:place], last[:place], strict=True))
        further |= Q(**same, **{f"{column}__gt": last[place]})
    return Q(**{f"{columns[0]}__gte": last[0]}) & further


def newest(
    engine: Engine, status: Status, task_filter: TaskFilter, since: datetime | None, limit: int
) -> list[tuple[datetime, UUID]]:
    """Return moments and ids of the tasks that ended last with a status, newest first, among the newest CAP."""
    rows = of_status(engine, status).order_by("-finished_at")
    rows = rows.filter(finished_at__gte=since) if since is not None else rows
    size = CAP if task_filter.queues or task_filter.tasks else limit
    found = rows.values_list("finished_at", "pk", "queue_name", "task_type")[:size]
    return [(at, pk) for at, pk, queue, task in found if at is not None and task_filter.matches(queue, task)][:limit]
