"""Requeue, cancel and wake: what is asked, what is done in batches, what is said and logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import api
from jobqueue.admin.task_list import CAP, Bounds, condition
from jobqueue.engine.clock import Clock
from jobqueue.models import Task
from jobqueue.records import LIVE, Status

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise as Text
else:
    Text = str | Promise

READ = 10_000  # ids per query
BATCH = 1000  # ids between two looks at the clock
EACH = 100  # tasks chosen together that are done, and logged, one by one: as many as a page of the list has
BUDGET_SECONDS = 10.0  # of work in one request; what is left is offered again
SAMPLES = 10
BUSY = gettext_lazy("%(count)d left as they are: another transaction has locked them, try again when it is over")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """
    One thing that people do to tasks.

    perform: ids -> how many tasks of each kind of `words`; the first `changing` of them were changed, the last
    kind was locked by somebody else.
    """

    name: str
    label: Text
    label_many: Text
    will: Text
    statuses: tuple[Status, ...]
    words: tuple[Text, ...]
    changing: int
    perform: Callable[[Sequence[UUID]], tuple[int, ...]]

    @property
    def condition(self) -> Q:
        """The tasks it can change, in the words of the indexes that find them."""
        return reduce(or_, (condition(status) for status in self.statuses))


def _requeue(ids: Sequence[UUID]) -> tuple[int, ...]:
    report = api.requeue(ids)
    return report.requeued, report.key_taken, report.skipped, len(report.busy)


def _cancel(ids: Sequence[UUID]) -> tuple[int, ...]:
    report = api.cancel(ids)
    return report.cancelled, report.requested, report.skipped, len(report.busy)


def _cancel_tree(ids: Sequence[UUID]) -> tuple[int, ...]:
    report = api.cancel(ids, tree=True)
    return report.cancelled, report.requested, report.skipped, len(report.busy)


def _wake(ids: Sequence[UUID]) -> tuple[int, ...]:
    woken = sum(api.wake(ids, backend=backend) for backend in api.aliases())
    return woken, len(ids) - woken, 0


REQUEUE = Deed(
    name="requeue",
    label=gettext_lazy("Requeue"),
    label_many=gettext_lazy("Requeue selected %(verbose_name_plural)s"),
    will=gettext_lazy("FAILED or CANCELLED: put back in its queue, with all its attempts."),
    statuses=(Status.FAILED, Status.CANCELLED),
    words=(
        gettext_lazy("%(count)d requeued"),
        gettext_lazy("%(count)d left alone: a live task holds the same key"),
        gettext_lazy("%(count)d skipped: not FAILED or CANCELLED"),
        BUSY,
    ),
    changing=1,
    perform=_requeue,
)
CANCEL = Deed(
    name="cancel",
    label=gettext_lazy("Cancel"),
    label_many=gettext_lazy("Cancel selected %(verbose_name_plural)s"),
    will=gettext_lazy("not ended yet: cancelled at once, or told to stop if it is running."),
    statuses=LIVE,
    words=(
        gettext_lazy("%(count)d cancelled"),
        gettext_lazy("%(count)d running: told to stop"),
        gettext_lazy("%(count)d skipped: ended already"),
        BUSY,
    ),
    changing=2,
    perform=_cancel,
)
CANCEL_TREE = replace(CANCEL, label=gettext_lazy("Cancel with its children"), perform=_cancel_tree)
WAKE = Deed(
    name="wake",
    label=gettext_lazy("Wake now"),
    label_many=gettext_lazy("Wake selected %(verbose_name_plural)s"),
    will=gettext_lazy("SUSPENDED: polled as soon as an executor has a slot for it."),
    statuses=(Status.SUSPENDED,),
    words=(
        gettext_lazy("%(count)d woken: polled as soon as an executor has a slot for it"),
        gettext_lazy("%(count)d skipped: not SUSPENDED"),
        BUSY,
    ),
    changing=1,
    perform=_wake,
)


@dataclass(slots=True)
class Tally:
    """
    What a deed did, summed over batches.

    one_by_one: the tasks changed, where each was a batch of its own: larger ones only tell how many they
    changed. rest: the newest task not dealt with, where time was up.
    """

    deed: Deed
    counts: list[int] = field(default_factory=list)
    one_by_one: list[UUID] = field(default_factory=list)
    rest: UUID | None = None

    def perform(self, ids: Sequence[UUID]) -> None:
        before, new = self.changed, self.deed.perform(ids)
        self.counts = [old + more for old, more in zip(self.counts or [0] * len(new), new, strict=True)]
        if len(ids) == 1 and self.changed > before:
            self.one_by_one.append(ids[0])

    @property
    def chosen(self) -> int:
        return sum(self.counts)

    @property
    def changed(self) -> int:
        return sum(self.counts[: self.deed.changing])

    def __str__(self) -> str:
        pairs = zip(self.counts, self.deed.words, strict=False)
        return ", ".join(str(words) % {"count": count} for count, words in pairs if count) or _("no task matched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a confirmation page shows about the rows within the bounds. Counting stops at CAP."""

    acted: int
    left: int
    samples: list[Task]
    bounds: Bounds | None

    @classmethod
    def of(cls, deed: Deed, rows: QuerySet[Task], bounds: Bounds | None) -> Forecast:
        rows = rows.order_by().filter(bounds.condition) if bounds else rows.none()
        return cls(
            acted=rows.filter(deed.condition)[: CAP + 1].count(),
            left=rows.exclude(status__in=deed.statuses)[: CAP + 1].count(),
            samples=list(rows.filter(deed.condition)[:SAMPLES]),
            bounds=bounds,
        )


def perform_ticked(deed: Deed, ids: Sequence[UUID]) -> Tally:
    """Do a deed to the tasks of these ids; when locks have used up the time, the rest counts as locked."""
    tally = Tally(deed)
    deadline = time.monotonic() + BUDGET_SECONDS
    for batch in _batches(ids, _size(ids)):
        if time.monotonic() > deadline and tally.counts:
            tally.counts[-1] += len(batch)
        else:
            tally.perform(batch)
    return tally


def perform(deed: Deed, rows: QuerySet[Task], bounds: Bounds, *, budget_seconds: float | None = None) -> Tally:
    """
    Apply an action to all matching rows within the bounds, newest first, until the time is up.

    The engine's statement guards each row by its state, so what an executor changes meanwhile is
    skipped and counted as such.
    """
    tally = Tally(deed)
    deadline = time.monotonic() + (BUDGET_SECONDS if budget_seconds is None else budget_seconds)
    rows = rows.filter(bounds.condition, deed.condition).order_by("-pk")
    ids = list(rows.values_list("pk", flat=True)[:READ])
    size = _size(ids)
    while ids:
        for batch in _batches(ids, size):
            if time.monotonic() > deadline and tally.counts:
                tally.rest = batch[0]
                return tally
            tally.perform(batch)
        ids = list(rows.filter(pk__lt=ids[-1]).values_list("pk", flat=True)[:READ])
    return tally


def _size(ids: Sequence[UUID]) -> int:
    return 1 if len(ids) <= EACH else BATCH


def _batches(ids: Sequence[UUID], size: int) -> Iterator[Sequence[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def log_one(request: HttpRequest, task: Task, what: Text) -> None:
    """Write who did it into the task's history."""
    _entry(request, str(task.pk), str(task), what).save()


def log(request: HttpRequest, tally: Tally, database: str) -> None:
    """
    Write who did it: into the history of each task that was changed, or once for all where they are many.

    An entry each would be as many rows again in a table that nothing prunes, and one statement for a
    thousand tasks does not tell which of them it changed.
    """
    if tally.changed > len(tally.one_by_one):
        LogEntry.objects.bulk_create([_for_all(request, tally)])
        return
    what = tally.deed.label
    if tally.chosen > 1:
        what = _("%(deed)s, one of %(count)d chosen together") % {"deed": what, "count": tally.chosen}
    known = Task.objects.using(database).only("task_type").in_bulk(tally.one_by_one)  # a cancelled one may be pruned
    titles = {pk: str(known.get(pk, pk)) for pk in tally.one_by_one}
    LogEntry.objects.bulk_create(_entry(request, str(pk), title, what) for pk, title in titles.items())


def _for_all(request: HttpRequest, tally: Tally) -> LogEntry:
    title = ngettext("%(count)d task", "%(count)d tasks", tally.chosen) % {"count": tally.chosen}
    is_across = request.POST.get("select_across") == "1"
    message = _("%(deed)s: %(done)s. Chosen by: %(filters)s. No entry for each: they were more than %(limit)d.") % {
        "deed": tally.deed.label,
        "done": tally,
        "filters": (request.META.get("QUERY_STRING") or _("no filter")) if is_across else _("hand"),
        "limit": EACH,
    }
    return _entry(request, None, title, message)


def _entry(request: HttpRequest, object_id: str | None, title: str, message: Text) -> LogEntry:
    # LogEntry.objects.log_actions() changes its arguments from one Django to the next, and wants objects.
    return LogEntry(
        action_time=Clock(),
        user_id=str(request.user.pk),
        content_type=ContentType.objects.get_for_model(Task),
        object_id=object_id,
        object_repr=title[:200],
        action_flag=CHANGE,
        change_message=str(message),
    )
