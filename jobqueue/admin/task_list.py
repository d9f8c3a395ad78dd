"""The task list: one page of a selection, with the rows that Django's change list shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import cached_property

from jobqueue.inspect.backends import options_of
from jobqueue.inspect.bulk import Bounds
from jobqueue.inspect.payload_display import row_annotations, secrets_of_tasks
from jobqueue.inspect.queries import CAP, Count
from jobqueue.inspect.selection import FILTERS, Selection
from jobqueue.models import Executor, Task
from jobqueue.serialization.redaction import MASK, redact_text

COLUMNS = (
    "backend", "queue_name", "task_type", "priority", "rank", "key", "status", "wake_at", "claimed_at", "executor_id",
    "attempts", "max_attempts", "polls", "enqueued_at", "last_attempted_at", "finished_at",
)  # fmt: skip


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
        super().get_queryset(request, exclude_parameters)  # makes filter_specs
        self.confirmed = Bounds.parse(request.POST.get("bounds", ""))
        if self.confirmed is not None:
            edge = self.confirmed.edge
            self.selection = replace(self.selection, known_edge=edge, is_edge_known=True)
        return self.selection.rows

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = CappedPaginator(self.selection.keys, self.list_per_page)
        self.result_count = self.number.number
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
    def selection(self) -> Selection:
        """What the address selects."""
        specs = (spec for spec in self.filter_specs if isinstance(spec, SimpleListFilter))
        values = {str(spec.parameter_name): str(value) for spec in specs if (value := spec.value())}
        filters = {name: value for name, value in values.items() if name in FILTERS}
        return Selection(self.root_queryset.db, filters, self.query)

    @property
    def number(self) -> Count:
        """How many tasks the list has. The link that selects all of them and the confirmation give the same number."""
        return self.selection.number


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
