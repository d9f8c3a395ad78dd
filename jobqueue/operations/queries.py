"""
Reading the task table, however large: each statement stops after a bounded number of rows.

Each status is read in the order of the index that serves it, so wrong statistics cannot lead the planner elsewhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils.translation import ngettext

from jobqueue.engine import CAP, Count, Engine, count_or_estimate
from jobqueue.models import JournalEntry, TaskQuerySet
from jobqueue.values.states import FINAL, Status

ORDER: dict[Status, tuple[str, ...]] = {
    Status.READY: ("queue_name", "pool", "rank", "pk"),
    Status.BLOCKED: ("pk",),
    Status.SCHEDULED: ("wake_at",),
    Status.AWAITING_CODE: ("queue_name", "task_type", "awaits_code_since", "pk"),
    Status.SUSPENDED: ("pk",),
    Status.RUNNING: ("executor_id", "queue_name", "pk"),
    **dict.fromkeys(FINAL, ("finished_at",)),
}


def entries_of(database: str, task_id: UUID) -> QuerySet[JournalEntry]:
    """Select the entries of a task. With `=`, PostgreSQL may read the whole table beside a large journal."""
    return JournalEntry.objects.using(database).filter(task_id__gte=task_id, task_id__lte=task_id)


def many(count: int | Count, noun: str) -> str:
    """Return a number with its noun: 1 executor, 2 executors, 10,000+ tasks."""
    text = str(count if isinstance(count, Count) else Count(count))
    return f"{text} {noun}{'' if text == '1' else 's'}"


def many_tasks(count: int | Count) -> str:
    """Format a number of tasks as many() does, in the active language."""
    number = count if isinstance(count, Count) else Count(count)
    return ngettext("%(number)s task", "%(number)s tasks", number.number) % {"number": number}


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


def tasks_with_status(engine: Engine, status: Status) -> TaskQuerySet:
    """Return the tasks of a status in the order of its index."""
    return engine.db.tasks.filter(status_condition(status)).order_by(*ORDER[status])
