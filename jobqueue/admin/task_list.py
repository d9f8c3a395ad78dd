"""The task list: one page of a selection, with the rows that Django's change list shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from jobqueue.admin.filters import TagFilter, TimeFilter
from jobqueue.declarations import registry
from jobqueue.engine import CAP, Count, count
from jobqueue.models import Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.bulk.target import Bounds
from jobqueue.operations.formatting import short_type
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.search import ERROR, KEY, TAG
from jobqueue.operations.list.selection import FILTERS, Selection
from jobqueue.operations.queries import count_of_status
from jobqueue.values.redaction import is_named
from jobqueue.values.states import Status

MAX_SUGGESTIONS = 200

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator  # not subscriptable in every version of Django


class CappedPaginator(AnyPaginator):
    """Counts at most CAP rows, which also bounds the OFFSET of the last page."""

    @cached_property
    def number(self) -> Count:
        rows = self.object_list
        return count(rows.order_by()) if isinstance(rows, QuerySet) else Count.capped(len(rows))

    @property
    def is_capped(self) -> bool:
        return self.number.is_more

    @property
    def count(self) -> int:
        return self.number.number


class TaskChangeList(ChangeList):
    """One page of tasks. The number of queries does not depend on the tasks."""

    confirmed: Bounds | None = None  # of the confirmation page that was submitted
    with_payload = False

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        self.with_payload = bool(request.user.has_perm("jobqueue.view_payload"))
        super().__init__(request, *args)

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
        self.result_list = read_rows(self.root_queryset, keys, with_payload=self.with_payload)

    @cached_property
    def selection(self) -> Selection:
        """The tasks that the address selects."""
        filters: dict[str, str] = {}
        for spec in self.filter_specs:
            if isinstance(spec, TimeFilter):
                filters |= {name: str(text) for name, text in spec.used_parameters.items()}
            elif isinstance(spec, SimpleListFilter) and (value := spec.value()):
                filters[str(spec.parameter_name)] = str(value)
        filters = {name: value for name, value in filters.items() if name in FILTERS}
        return Selection(self.root_queryset.db, filters, self.query, with_payload=self.with_payload)

    @property
    def number(self) -> Count:
        """
        Return how many tasks the list has. The link that selects all of them and the confirmation give the same number.
        """
        return self.selection.number

    @property
    def kept_by_search(self) -> dict[str, Any]:
        """The filters that another search keeps. Those by error and tag may come from the last search."""
        dropped = {SEARCH_VAR, "tag", *(("cause", "status") if "cause" in self.params else ())}
        return {name: value for name, value in self.params.items() if name not in dropped}

    @cached_property
    def suggestions(self) -> list[str]:
        """The suggestions of the search box: known tasks, their arguments if the user may see them, and tags."""
        names = list(registry.offered())
        texts = {short_type(name) for name in names}
        if self.with_payload:
            texts |= {f"args.{name}:" for task_type in names for name in list_parameters(task_type)}
        tags = [f"{TAG}{tag}" for tag in self.tags]
        return [*sorted(texts)[:MAX_SUGGESTIONS], *tags, KEY, TAG, ERROR]

    @property
    def tags(self) -> list[str]:
        """The tags that the filter offers."""
        specs = (spec for spec in self.filter_specs if isinstance(spec, TagFilter))
        return [str(tag) for spec in specs for tag, _label in spec.lookup_choices]

    @cached_property
    def tabs(self) -> list[Tab]:
        """All tasks, then those of each status. Only the filter by backend changes the numbers."""
        backend = self.selection.filters.get("backend")
        rows = self.selection.tasks.filter(backend=backend) if backend else self.selection.tasks
        selected = self.selection.status
        tabs = [Tab("", None, self.get_query_string(remove=["status", "p"]), not selected)]
        for status in Status:
            number = count_of_status(rows, status, exact=CAP)
            address = self.get_query_string({"status": status.value}, remove=["p"])
            tabs.append(Tab(status, number, address, status == selected))
        return tabs


def list_parameters(task_type: str) -> tuple[str, ...]:
    """Return the names of the arguments of a known task that are not masked."""
    parameters, patterns = registry.parameters(task_type), options_of(registry.all()[task_type].backend).redact
    names = parameters.signature.parameters if parameters else ()
    return tuple(name for name in names if not is_named(patterns, name))


class Tab(NamedTuple):
    """A link to the tasks of a status."""

    status: str  # empty for all tasks
    number: Count | None  # of tasks; None if it is not counted
    address: str  # of the list
    is_selected: bool  # the list shows this status
