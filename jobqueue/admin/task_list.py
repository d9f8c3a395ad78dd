"""
The task list, fast at millions of rows.

Measured at 3 million rows: walking the primary key for a rare status takes 0.5 to 0.7 s, and no
statistics keep the planner from it. So each status is read in the order of an index that serves it;
the few statuses whose index has another order are read whole and sorted here, as long as they are
few; and filters that no index serves look among the newest rows only, which the page says.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import cached_property

from jobqueue.admin.search import Search
from jobqueue.inspect.annotations import Small, facts
from jobqueue.inspect.backends import backends_on, options_of
from jobqueue.inspect.bulk import Bounds
from jobqueue.inspect.payload_display import read, secrets_of
from jobqueue.inspect.queries import CAP, Count, status_condition
from jobqueue.models import Executor, Task
from jobqueue.serialization.redaction import MASK, redact_text

# How many of the newest rows a filter without an index looks at. Rows of one status lie far apart:
# 58,000 FAILED ones are 58,000 pages, read in 0.35 s, where 100,000 neighbours take 0.03 s.
WINDOW = 100_000
WINDOW_OF_STATUS = 10_000

COLUMNS = (
    "backend", "queue_name", "task_type", "priority", "rank", "key", "status", "wake_at", "claimed_at", "executor_id",
    "attempts", "max_attempts", "polls", "enqueued_at", "last_attempted_at", "finished_at",
)  # fmt: skip

ENDED = (Task.Status.SUCCESSFUL, Task.Status.FAILED, Task.Status.CANCELLED)
# Of a status: the filters beside it that its index holds too, with their columns.
ALSO_SERVED: dict[str, dict[str, str]] = {
    Task.Status.FAILED: {"task": "task_type"},
    Task.Status.SUSPENDED: {"backend": "backend"},
}
ORDER: dict[str, str] = {**dict.fromkeys(ENDED, "-finished_at"), Task.Status.SCHEDULED: "wake_at"}


if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator  # takes no type in brackets under every Django


class CappedPaginator(AnyPaginator):
    """Counts no further than CAP, which also bounds the OFFSET of the last page."""

    @cached_property
    def found(self) -> int:
        rows = self.object_list
        return rows.order_by()[: CAP + 1].count() if isinstance(rows, QuerySet) else len(rows)

    @property
    def is_capped(self) -> bool:
        return self.found > CAP

    @cached_property
    def count(self) -> int:
        return min(self.found, CAP)


class TaskChangeList(ChangeList):
    """One page of tasks, in a number of queries that does not depend on what they are."""

    confirmed: Bounds | None = None  # of the confirmation page that was submitted

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Task]:
        """Return the rows that match the filters. The list, its count, the confirmation and the action use these."""
        rows: QuerySet[Task] = super().get_queryset(request, exclude_parameters)
        self.confirmed = Bounds.parse(request.POST.get("bounds", ""))
        if self.edge is None:
            return rows
        return rows.filter(**{f"{self._column}__{'gte' if self.order.startswith('-') else 'lte'}": self.edge})

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = CappedPaginator(self._keys(), self.list_per_page)
        self.result_count = self.paginator.count
        self.full_result_count = self.result_count  # as if all were counted: else the search box says so again
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = False
        self.multi_page = self.paginator.num_pages > 1
        try:
            keys = list(self.paginator.page(self.page_num).object_list)
        except InvalidPage as error:
            raise IncorrectLookupParameters from error
        self.result_list = read_rows(self.root_queryset, keys)

    @cached_property
    def search(self) -> Search:
        return Search.parse(self.query)

    @property
    def is_capped(self) -> bool:
        return bool(self.paginator.is_capped)

    @property
    def chosen(self) -> dict[str, str]:
        """The filters in force."""
        specs = (spec for spec in self.filter_specs if isinstance(spec, SimpleListFilter) and spec.parameter_name)
        return {str(spec.parameter_name): value for spec in specs if (value := spec.value())}

    @property
    def status(self) -> str:
        return self.chosen.get("status", "")

    @cached_property
    def has_one_backend(self) -> bool:
        return "backend" in self.chosen or len(backends_on(self.root_queryset.db)) == 1

    def _served(self) -> Q:
        """Say what an index finds: the one filter it serves best, and what else that index holds."""
        chosen, ids = self.chosen, self.search.ids
        if "parent" in chosen:
            return ids & (Q(parent_id=chosen["parent"]) if to_uuid(chosen["parent"]) else Q(pk__in=[]))
        if not self.status:
            return ids
        served = ids & status_condition(self.status)
        for name, column in ALSO_SERVED.get(self.status, {}).items():
            served &= Q(**{column: chosen[name]}) if name in chosen else Q()
        return served

    @property
    def is_filtered_further(self) -> bool:
        """Whether a filter is in force that `served` leaves out."""
        beside = {"parent"} if "parent" in self.chosen else {"status", *ALSO_SERVED.get(self.status, {})}
        if len(backends_on(self.root_queryset.db)) == 1:
            beside.add("backend")
        return bool(self.chosen.keys() - beside)

    @property
    def is_read_whole(self) -> bool:
        """Whether all keys are read, as long as they are few: no index gives them in the order of the list."""
        if "parent" in self.chosen or self.status in (Task.Status.READY, Task.Status.RUNNING):
            return True
        return self.status == Task.Status.SUSPENDED and not self.has_one_backend

    @property
    def order(self) -> str:
        return ORDER.get(self.status, "-pk")

    @property
    def _column(self) -> str:
        return self.order.removeprefix("-")

    @cached_property
    def _whole(self) -> list[UUID] | None:
        """Return all keys that an index serves, if this list reads them all and they are at most CAP."""
        if not self.is_read_whole:
            return None
        keys = read_keys(self.root_queryset.filter(self._served()))
        return keys if len(keys) <= CAP else None

    @cached_property
    def edge(self) -> str | None:
        """Return where the window ends. A filter without an index searches only these newest rows."""
        if self.confirmed is not None:
            return self.confirmed.edge
        if not self.is_filtered_further or self.search.key is not None or self._whole is not None:
            return None
        # If the index does not hold the backend, ignore the backend: then the index answers without reading rows.
        holds_backend = self.status and not (self.status == Task.Status.FAILED and "task" in self.chosen)
        rows = self.root_queryset if holds_backend else Task.objects.using(self.root_queryset.db)
        served = rows.filter(self._served()).order_by(self.order).values_list(self._column, flat=True)
        value = served[self._window_size : self._window_size + 1].first()
        return value.isoformat() if isinstance(value, datetime) else value and str(value)

    @property
    def _window_size(self) -> int:
        return WINDOW if self.status in ("", Task.Status.SUCCESSFUL) else WINDOW_OF_STATUS

    @property
    def window(self) -> Count | None:
        """Return how many rows were searched, or None if all were."""
        return None if self.edge is None else Count(self._window_size)

    def _keys(self) -> QuerySet[Any, UUID] | list[UUID]:
        """
        Give the keys of what is listed, in order: all of them where they had to be read, else a query.

        Keys first, rows afterwards: OFFSET would unpack the errors of every row it skips.
        """
        if self.search.key is not None:  # one index holds the keys of live tasks, another those of ended ones
            keys = [pk for live in (True, False) for pk in read_keys(self.queryset.filter(finished_at__isnull=live))]
            if len(keys) <= CAP:
                return sorted(keys, reverse=True)
        elif self._whole is not None:
            return sorted(read_keys(self.queryset) if self.is_filtered_further else self._whole, reverse=True)
        rows = self.queryset.values_list("pk", flat=True)
        return list(rows[: CAP + 1]) if self.is_filtered_further else rows


def read_keys(rows: QuerySet[Task]) -> list[UUID]:
    """Read keys in whatever order an index gives them, one more than are counted."""
    return list(rows.order_by().values_list("pk", flat=True)[: CAP + 1])


def read_rows(rows: QuerySet[Task], keys: list[UUID]) -> list[Task]:
    """Read a page of tasks in the order of the keys, each with the name of the executor that holds it."""
    found = rows.filter(pk__in=keys).only(*COLUMNS).annotate(now=Now(), **facts())
    by_key = {row.pk: row for row in found}
    page: list[Task] = [by_key[key] for key in keys if key in by_key]
    for row in page:
        if row.status == Task.Status.SUCCESSFUL:  # its errors are of earlier attempts
            row.error_class = row.error_message = None  # type: ignore[attr-defined]
    held = {row.executor_id for row in page if row.status == Task.Status.RUNNING and row.executor_id}
    names = dict(Executor.objects.using(rows.db).filter(pk__in=held).values_list("pk", "name")) if held else {}
    mask_errors(rows.db, page)
    for row in page:
        row.executor_name = names.get(row.executor_id) if row.executor_id else None  # type: ignore[attr-defined]
    return page


def mask_errors(database: str, page: Sequence[Task]) -> None:
    """
    Mask in the errors of a page what is masked among the arguments.

    Only the arguments of tasks with an error are read, and only where they are small; else its message is left out.
    """
    said = {row.pk: row for row in page if row.error_message}  # type: ignore[attr-defined]
    if not said:
        return
    texts = {"args_text": Small(F("args")), "kwargs_text": Small(F("kwargs"))}
    for pk, args, kwargs in (
        Task.objects.using(database).filter(pk__in=said).annotate(**texts).values_list("pk", *texts)
    ):
        row: Any = said[pk]
        patterns = options_of(row.backend).redact
        if args is None or kwargs is None:
            row.error_message = MASK
        else:
            secrets = secrets_of(row.task_type, read(args), read(kwargs), patterns)
            row.error_message = redact_text(str(row.error_message), patterns, secrets)


def to_uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text or "")
    except ValueError:
        return None
