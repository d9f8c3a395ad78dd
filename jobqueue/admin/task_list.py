"""
The task list, fast at millions of rows. It first finds the keys of a page, then reads their rows.

| strategy | used if | what is read |
|---|---|---|
| index order | one index has all filters and the order of the list | the keys up to the page |
| all keys | an index has the filter in another order: READY, RUNNING, parent, schedule, key | CAP keys, sorted here |
| window | a filter has no index | the newest WINDOW tasks, or WINDOW_OF_STATUS of the status; the page says so |

A list with more than CAP keys falls back from the second strategy to the others. At 3 million rows, walking the primary
key to find a rare status took 0.5 to 0.7 s, and no statistics kept the planner from it. So each status is read in the
order of its own index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import cached_property

from jobqueue.admin.filters import of_schedule, to_uuid
from jobqueue.inspect.backends import backends_on, options_of
from jobqueue.inspect.bulk import Bounds
from jobqueue.inspect.payload_display import row_annotations, secrets_of_tasks
from jobqueue.inspect.queries import CAP, Count, status_condition
from jobqueue.models import Executor, Task
from jobqueue.serialization.redaction import MASK, redact_text

# The rows of one status are scattered: 58,000 FAILED tasks are on 58,000 pages, which take 0.35 s. The newest
# 100,000 tasks are neighbours and take 0.03 s.
WINDOW = 100_000
WINDOW_OF_STATUS = 10_000

COLUMNS = (
    "backend", "queue_name", "task_type", "priority", "rank", "key", "status", "wake_at", "claimed_at", "executor_id",
    "attempts", "max_attempts", "polls", "enqueued_at", "last_attempted_at", "finished_at",
)  # fmt: skip

# Filters by the row that tasks belong to, the first one first.
GROUPS = ("parent", "schedule")
HEX = re.compile(r"[0-9a-f]{1,32}")
ENDED = (Task.Status.SUCCESSFUL, Task.Status.FAILED, Task.Status.CANCELLED)
# By status: the other filters that its index contains, with their columns.
ALSO_INDEXED: dict[str, dict[str, str]] = {
    Task.Status.FAILED: {"task": "task_type"},
    Task.Status.SUSPENDED: {"backend": "backend"},
}
ORDER: dict[str, str] = {**dict.fromkeys(ENDED, "-finished_at"), Task.Status.SCHEDULED: "wake_at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search box offers no search that would scan the table. ids: a range of the primary key. key: a task's key."""

    ids: Q
    key: str | None = None
    is_understood: bool = True

    @classmethod
    def parse(cls, text: str) -> Search:
        """Parse a task id, its first characters, or key:<key>."""
        text = text.strip()
        if not text:
            return cls(ids=Q())
        if text.lower().startswith("key:"):
            return cls(ids=Q(), key=text[4:].strip())
        digits = text.lower().replace("-", "")
        if not HEX.fullmatch(digits):
            return cls(ids=Q(pk__in=[]), is_understood=False)
        return cls(ids=Q(pk__range=(UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))))

    @property
    def condition(self) -> Q:
        return self.ids if self.key is None else self.ids & Q(key=self.key)


if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator  # not subscriptable in every version of Django


class CappedPaginator(AnyPaginator):
    """Counts at most CAP rows, which also bounds the OFFSET of the last page."""

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
    """One page of tasks. The number of queries does not depend on the tasks."""

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
        self.full_result_count = self.result_count  # or the search box shows it again
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
    def active_filters(self) -> dict[str, str]:
        """The filters that are set, by parameter."""
        specs = (spec for spec in self.filter_specs if isinstance(spec, SimpleListFilter) and spec.parameter_name)
        return {str(spec.parameter_name): value for spec in specs if (value := spec.value())}

    @property
    def status(self) -> str:
        return self.active_filters.get("status", "")

    @cached_property
    def has_one_backend(self) -> bool:
        return "backend" in self.active_filters or len(backends_on(self.root_queryset.db)) == 1

    def _index_condition(self) -> Q:
        """Return the condition that one index serves: the most selective filter, and what else its index contains."""
        filters, ids = self.active_filters, self.search.ids
        if "parent" in filters:
            return ids & (Q(parent_id=filters["parent"]) if to_uuid(filters["parent"]) else Q(pk__in=[]))
        if "schedule" in filters:
            return ids & of_schedule(filters["schedule"], self.root_queryset.db)
        if not self.status:
            return ids
        condition = ids & status_condition(self.status)
        for name, column in ALSO_INDEXED.get(self.status, {}).items():
            condition &= Q(**{column: filters[name]}) if name in filters else Q()
        return condition

    @property
    def has_unindexed_filter(self) -> bool:
        """Whether a filter is set that `_index_condition` does not contain."""
        group = next((name for name in GROUPS if name in self.active_filters), None)
        indexed = {group} if group else {"status", *ALSO_INDEXED.get(self.status, {})}
        if len(backends_on(self.root_queryset.db)) == 1:
            indexed.add("backend")
        return bool(self.active_filters.keys() - indexed)

    @property
    def needs_all_keys(self) -> bool:
        """Whether no index has the filter in the order of the list."""
        if self.active_filters.keys() & {*GROUPS} or self.status in (Task.Status.READY, Task.Status.RUNNING):
            return True
        return self.status == Task.Status.SUSPENDED and not self.has_one_backend

    @property
    def order(self) -> str:
        return ORDER.get(self.status, "-pk")

    @property
    def _column(self) -> str:
        return self.order.removeprefix("-")

    @cached_property
    def _all_keys(self) -> list[UUID] | None:
        """Return all keys of the index condition if the list needs them and there are at most CAP."""
        if not self.needs_all_keys:
            return None
        keys = read_keys(self.root_queryset.filter(self._index_condition()))
        return keys if len(keys) <= CAP else None

    @cached_property
    def edge(self) -> str | None:
        """Return where the window ends. A filter without an index searches only these newest rows."""
        if self.confirmed is not None:
            return self.confirmed.edge
        if not self.has_unindexed_filter or self.search.key is not None or self._all_keys is not None:
            return None
        # An index without the backend answers alone only if the query ignores the backend.
        has_backend = self.status and not (self.status == Task.Status.FAILED and "task" in self.active_filters)
        rows = self.root_queryset if has_backend else Task.objects.using(self.root_queryset.db)
        ordered = rows.filter(self._index_condition()).order_by(self.order).values_list(self._column, flat=True)
        value = ordered[self._window_size : self._window_size + 1].first()
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
        Return the keys of the list in its order: a list of them, or a query.

        OFFSET over rows instead of keys would unpack the errors of every skipped row.
        """
        if self.search.key is not None:  # one index has the keys of live tasks, another those of ended ones
            keys = [pk for live in (True, False) for pk in read_keys(self.queryset.filter(finished_at__isnull=live))]
            if len(keys) <= CAP:
                return sorted(keys, reverse=True)
        elif self._all_keys is not None:
            return sorted(read_keys(self.queryset) if self.has_unindexed_filter else self._all_keys, reverse=True)
        rows = self.queryset.values_list("pk", flat=True)
        return list(rows[: CAP + 1]) if self.has_unindexed_filter else rows


def read_keys(rows: QuerySet[Task]) -> list[UUID]:
    """Read at most CAP + 1 keys in the order of an index."""
    return list(rows.order_by().values_list("pk", flat=True)[: CAP + 1])


def read_rows(rows: QuerySet[Task], keys: list[UUID]) -> list[Task]:
    """Read a page of tasks in the order of the keys, each with the name of the executor that runs it."""
    found = rows.filter(pk__in=keys).only(*COLUMNS).annotate(now=Now(), **row_annotations())
    by_key = {row.pk: row for row in found}
    page: list[Task] = [by_key[key] for key in keys if key in by_key]
    for row in page:
        if row.status == Task.Status.SUCCESSFUL:  # its errors are of earlier attempts
            row.error_class = row.error_message = None  # type: ignore[attr-defined]
    executor_ids = {row.executor_id for row in page if row.status == Task.Status.RUNNING and row.executor_id}
    names = (
        dict(Executor.objects.using(rows.db).filter(pk__in=executor_ids).values_list("pk", "name"))
        if executor_ids
        else {}
    )
    mask_errors(rows.db, page)
    for row in page:
        row.executor_name = names.get(row.executor_id) if row.executor_id else None  # type: ignore[attr-defined]
    return page


def mask_errors(database: str, page: Sequence[Task]) -> None:
    """Mask the secrets of the arguments in error messages. Without readable, small arguments mask the whole message."""
    failed: list[Any] = [row for row in page if row.error_message]  # type: ignore[attr-defined]
    secrets = secrets_of_tasks(database, [row.pk for row in failed])
    for row in failed:
        patterns = options_of(row.backend).redact
        found = secrets.get(row.pk)
        row.error_message = MASK if found is None else redact_text(str(row.error_message), patterns, found)
