"""
Bulk actions: requeue, cancel or wake some tasks by id, or all tasks of a filter, in batches.

A filter is read again when the action runs. Bounds exclude tasks that were enqueued or that ended after the preview.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import reduce
from operator import or_
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from jobqueue import api
from jobqueue.engine.clock import read_clock
from jobqueue.inspect.formatting import Text
from jobqueue.inspect.queries import Count, count, status_condition
from jobqueue.models import Task
from jobqueue.records import FINAL, LIVE, CancelReport, RequeueReport, Status

PAGE = 10_000  # ids per query
BATCH = 1000  # ids per statement
MAX_SINGLE = 100  # up to so many tasks, each is a batch and a log entry of its own: one page of the admin's list
BUDGET_SECONDS = 10.0  # per request
SAMPLES = 10
UNCHANGED = ("key_taken", "skipped", "busy")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """
    One action on many tasks.

    statuses: the tasks it can change. perform: returns numbers of tasks by what became of them. sentences: for each of
    these, in the order in which they are shown. label_many, forecast: of the list and its confirmation page.
    """

    name: str
    label: Text
    label_many: Text = ""
    forecast: Text = ""
    sentences: Mapping[str, Text]
    statuses: tuple[Status, ...]
    perform: Callable[[Sequence[UUID], str | None], Mapping[str, int]]

    @property
    def condition(self) -> Q:
        """The tasks it can change, as the partial indexes state it."""
        return reduce(or_, (status_condition(status) for status in self.statuses))


def numbers_of(number: Count) -> dict[str, object]:
    """Return what a sentence with a plural needs: the number, and its text with separators."""
    return {"count": number.number, "number": number}


def _numbers(report: RequeueReport | CancelReport) -> dict[str, int]:
    values = {one.name: getattr(report, one.name) for one in fields(report)}
    return {name: value if isinstance(value, int) else len(value) for name, value in values.items()}


def _wake(ids: Sequence[UUID], backend: str | None) -> Mapping[str, int]:
    woken = sum(api.wake(ids, backend=alias) for alias in (api.aliases() if backend is None else [backend]))
    return {"woken": woken, "skipped": len(ids) - woken}


BUSY = ngettext_lazy(
    "Skipped %(number)s task: another transaction has locked it. Try again later.",
    "Skipped %(number)s tasks: other transactions have locked them. Try again later.",
    "count",
)
REQUEUE = BulkAction(
    name="requeue",
    label=gettext_lazy("Requeue"),
    label_many=gettext_lazy("Requeue selected %(verbose_name_plural)s"),
    forecast=ngettext_lazy(
        "%(number)s failed or cancelled task will be requeued with a fresh set of attempts.",
        "%(number)s failed or cancelled tasks will be requeued with a fresh set of attempts.",
        "count",
    ),
    sentences={
        "requeued": ngettext_lazy("Requeued %(number)s task.", "Requeued %(number)s tasks.", "count"),
        "key_taken": ngettext_lazy(
            "Skipped %(number)s task: a live task has the same key.",
            "Skipped %(number)s tasks: live tasks have the same keys.",
            "count",
        ),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: not failed or cancelled, or deleted.",
            "Skipped %(number)s tasks: not failed or cancelled, or deleted.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=(Status.FAILED, Status.CANCELLED),
    perform=lambda ids, backend: _numbers(api.requeue(ids, backend=backend)),
)
CANCEL = BulkAction(
    name="cancel",
    label=gettext_lazy("Cancel"),
    label_many=gettext_lazy("Cancel selected %(verbose_name_plural)s"),
    forecast=ngettext_lazy(
        "%(number)s unfinished task will be cancelled; if it is running, it is asked to stop.",
        "%(number)s unfinished tasks will be cancelled; running ones are asked to stop.",
        "count",
    ),
    sentences={
        "cancelled": ngettext_lazy("Cancelled %(number)s task.", "Cancelled %(number)s tasks.", "count"),
        "requested": ngettext_lazy(
            "Asked %(number)s running task to stop.", "Asked %(number)s running tasks to stop.", "count"
        ),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: already ended, or deleted.",
            "Skipped %(number)s tasks: already ended, or deleted.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=LIVE,
    perform=lambda ids, backend: _numbers(api.cancel(ids, backend=backend)),
)
CANCEL_TREE = replace(
    CANCEL,
    label=gettext_lazy("Cancel with descendants"),
    perform=lambda ids, backend: _numbers(api.cancel(ids, backend=backend, tree=True)),
)
WAKE = BulkAction(
    name="wake",
    label=gettext_lazy("Wake now"),
    sentences={
        "woken": ngettext_lazy(
            "Woke %(number)s task. It runs as soon as an executor has a free slot.",
            "Woke %(number)s tasks. They run as soon as executors have free slots.",
            "count",
        ),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: not suspended, or deleted.",
            "Skipped %(number)s tasks: not suspended, or deleted.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=(Status.SUSPENDED,),
    perform=_wake,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """
    Limits of the tasks in a preview, so that its action finds the same tasks.

    upto: the id of the newest task. asked_at: tasks that ended later are excluded. edge: the value of the order column
    in the last row of the window, if the admin's list searched a window.
    """

    upto: UUID
    asked_at: datetime
    edge: str | None = None

    @classmethod
    def now(cls, database: str, edge: str | None = None) -> Bounds:
        """Return the bounds of the present tasks."""
        # The newest of all tasks, because finding the newest match would need a search instead of one index entry.
        newest = Task.objects.using(database).order_by("-pk").values_list("pk", flat=True).first()
        return cls(upto=newest or UUID(int=0), asked_at=read_clock(database), edge=edge)

    @classmethod
    def parse(cls, text: str) -> Bounds | None:
        """Parse the bounds in a form's field. Return None if they are missing or invalid."""
        try:
            upto, asked_at, edge = text.split(" ")
            return cls(upto=UUID(upto), asked_at=datetime.fromisoformat(asked_at), edge=edge or None)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.upto} {self.asked_at.isoformat()} {self.edge or ''}"

    @property
    def condition(self) -> Q:
        """Return the condition for tasks within the bounds. `TaskChangeList.get_queryset` applies the edge."""
        return Q(pk__lte=self.upto) & (Q(finished_at__isnull=True) | Q(finished_at__lte=self.asked_at))

    def condition_of(self, status: Status) -> Q:
        """Return the condition for tasks of one status, which the index of the status can use."""
        return Q(finished_at__lte=self.asked_at) if status in FINAL else Q(pk__lte=self.upto)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What an action will do. matching: tasks that it can change; other: tasks of the filter in other states."""

    matching: Count
    other: Count
    samples: Sequence[Task]
    bounds: Bounds

    @classmethod
    def of(cls, action: BulkAction, rows: QuerySet[Task], bounds: Bounds) -> Preview:
        rows = rows.order_by().filter(bounds.condition)
        return cls(
            matching=count(rows.filter(action.condition)),
            other=count(rows.exclude(status__in=action.statuses)),
            samples=list(rows.filter(action.condition)[:SAMPLES]),
            bounds=bounds,
        )


class BulkRun:
    """
    An action on batches of tasks.

    result: the sums of their numbers. changed_ids: the tasks that were changed, if each was a batch of its own.
    resume_at: the newest task that was not handled when the time was up.
    """

    def __init__(self, action: BulkAction, backend: str | None = None) -> None:
        self.action, self.backend = action, backend
        self.result = Counter(dict.fromkeys(action.sentences, 0))
        self.changed_ids: list[UUID] = []
        self.resume_at: UUID | None = None

    @property
    def affected(self) -> int:
        return self.result.total() - sum(self.result[name] for name in UNCHANGED)

    def perform(self, ids: Sequence[UUID]) -> None:
        before = self.affected
        numbers = self.action.perform(ids, self.backend)
        self.result.update({name: numbers.get(name, 0) for name in self.result})
        if len(ids) == 1 and self.affected > before:
            self.changed_ids.append(ids[0])

    def __str__(self) -> str:
        numbers = {name: number for name, number in self.result.items() if number}
        shown = (str(self.action.sentences[name] % numbers_of(Count(number))) for name, number in numbers.items())
        return " ".join(shown) or _("No task matched.")


def perform_ids(action: BulkAction, ids: Sequence[UUID]) -> BulkRun:
    """Perform an action on tasks by id. Tasks that are left when locks have used up the time count as busy."""
    run = _perform(action, [ids])
    run.result["busy"] += len(ids) - run.result.total()
    run.resume_at = None
    return run


def perform_matching(action: BulkAction, rows: QuerySet[Task], bounds: Bounds) -> BulkRun:
    """
    Perform an action on all matching tasks within the bounds, newest first, until the time is up.

    The engine checks each task's state again, so tasks that executors have changed since count as skipped.
    """
    return _perform(action, _pages(rows.filter(bounds.condition, action.condition).order_by("-pk")))


def _pages(rows: QuerySet[Task]) -> Iterator[list[UUID]]:
    page = rows
    while ids := list(page.values_list("pk", flat=True)[:PAGE]):
        yield ids
        page = rows.filter(pk__lt=ids[-1])


def _perform(action: BulkAction, pages: Iterable[Sequence[UUID]]) -> BulkRun:
    run = BulkRun(action)
    deadline = time.monotonic() + BUDGET_SECONDS
    size = 0
    for ids in pages:
        size = size or (1 if len(ids) <= MAX_SINGLE else BATCH)
        for batch in batches(ids, size):
            if time.monotonic() > deadline and run.result.total():
                run.resume_at = batch[0]
                return run
            run.perform(batch)
    return run


def batches(ids: Sequence[UUID], size: int) -> Iterator[Sequence[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
