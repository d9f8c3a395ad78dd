"""The task list: one page of a selection, with the rows that Django's change list shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import cached_property

from jobqueue import registry
from jobqueue.admin.filters import TimeFilter
from jobqueue.bulk_actor import is_internal
from jobqueue.inspect.backends import options_of
from jobqueue.inspect.bulk import Bounds
from jobqueue.inspect.formatting import short_type
from jobqueue.inspect.payload_display import UNREADABLE, arguments_in_line, read, row_annotations, secrets_of
from jobqueue.inspect.queries import CAP, Count, count_of_status
from jobqueue.inspect.search import ERROR, KEY
from jobqueue.inspect.selection import FILTERS, Selection
from jobqueue.models import Executor, Task
from jobqueue.records import Status
from jobqueue.serialization.redaction import MASK, is_named, redact_text

COLUMNS = (
    "backend", "queue_name", "task_type", "priority", "rank", "key", "status", "wake_at", "claimed_at", "executor_id",
    "attempts", "max_attempts", "polls", "enqueued_at", "last_attempted_at", "finished_at",
)  # fmt: skip
MAX_SUGGESTIONS = 200

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
        """What the address selects."""
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
        """How many tasks the list has. The link that selects all of them and the confirmation give the same number."""
        return self.selection.number

    @cached_property
    def suggestions(self) -> list[str]:
        """What the search box offers: the names of known tasks, and of their arguments if the user may see them."""
        known = [name for name in registry.all() if not is_internal(name)]
        found = {short_type(name) for name in known}
        if self.with_payload:
            found |= {f"args.{name}:" for one in known for name in parameters_of(one)}
        return [*sorted(found)[:MAX_SUGGESTIONS], KEY, ERROR]

    @cached_property
    def tabs(self) -> list[Tab]:
        """All tasks, then those of each status. Only the filter by backend changes the numbers."""
        backend = self.selection.filters.get("backend")
        rows = self.selection.tasks.filter(backend=backend) if backend else self.selection.tasks
        chosen = self.selection.status
        tabs = [Tab("", None, self.get_query_string(remove=["status", "p"]), not chosen)]
        for status in Status:
            number = count_of_status(rows, status, exact=CAP)
            address = self.get_query_string({"status": status.value}, remove=["p"])
            tabs.append(Tab(status, number, address, status == chosen))
        return tabs


def parameters_of(task_type: str) -> tuple[str, ...]:
    """Return the names of the arguments of a known task that are not masked."""
    parameters, patterns = registry.parameters(task_type), options_of(registry.all()[task_type].backend).redact
    names = parameters.signature.parameters if parameters else ()
    return tuple(name for name in names if not is_named(patterns, name))


class Tab(NamedTuple):
    """A link to the tasks of a status, with their number."""

    status: str
    number: Count | None
    address: str
    is_selected: bool


def read_rows(rows: QuerySet[Task], keys: list[UUID], *, with_payload: bool = False) -> list[Task]:
    """
    Read a page of tasks in the order of the keys, each with the name of the executor that runs it.

    with_payload: whether the reader may see arguments.
    """
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
    for row in page:
        row.executor_name = names.get(row.executor_id) if row.executor_id else None  # type: ignore[attr-defined]
        mask(row, with_payload=with_payload)
    return page


def mask(row: Any, *, with_payload: bool) -> None:
    """
    Mask the secrets of the arguments in the error message. Set `call`, the first arguments in one line.

    If the arguments are too large to read here, the whole message is masked.
    """
    patterns = options_of(row.backend).redact
    args, kwargs = (UNREADABLE if text is None else read(text) for text in (row.args_text, row.kwargs_text))
    row.call = arguments_in_line(row.task_type, args, kwargs, patterns) if with_payload else ""
    if row.error_message and UNREADABLE in (args, kwargs):
        row.error_message = MASK
    elif row.error_message:
        secrets = secrets_of(row.task_type, args, kwargs, patterns)
        row.error_message = redact_text(str(row.error_message), patterns, secrets)
