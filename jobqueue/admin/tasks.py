"""The admin of tasks: its list, and the pages of which it is composed."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.forms import Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext_lazy, ngettext

from jobqueue.admin.base import ReadOnlyAdmin, database_for, permission
from jobqueue.admin.bulk_actions import FUNCTIONS
from jobqueue.admin.enqueue_page import EnqueuePage
from jobqueue.admin.extensions import extensions
from jobqueue.admin.failures import FailuresPage
from jobqueue.admin.filters import (
    BackendFilter,
    BatchFilter,
    CauseFilter,
    EndedFilter,
    EnqueuedFilter,
    ExecutorFilter,
    KindFilter,
    LimitFilter,
    ParentFilter,
    QueueFilter,
    ScheduleFilter,
    StatusFilter,
    TagFilter,
    TaskNameFilter,
)
from jobqueue.admin.journal_page import JournalPage
from jobqueue.admin.summaries import SummaryPage
from jobqueue.admin.task_columns import CELLS, COLUMNS, ColumnsPage, columns_for, name, state
from jobqueue.admin.task_list import TaskChangeList
from jobqueue.admin.task_page import TaskPage
from jobqueue.admin.workflows_page import WorkflowsPage
from jobqueue.models import Task
from jobqueue.operations.backends import backends_on, databases
from jobqueue.operations.bulk.actions import CANCEL, DELETE, REQUEUE, RUN_NOW, plural_values
from jobqueue.operations.list.interpretation import interpret
from jobqueue.operations.list.selection import ENDED, ENQUEUED, at
from jobqueue.operations.task.detail import find_task
from jobqueue.values.counters import Scope


class TaskAdmin(ReadOnlyAdmin):
    list_display_links = (name,)
    list_filter = (
        StatusFilter, QueueFilter, TaskNameFilter, KindFilter, TagFilter, BackendFilter, CauseFilter, ParentFilter,
        BatchFilter, ScheduleFilter, LimitFilter, ExecutorFilter, EnqueuedFilter, EndedFilter,
    )  # fmt: skip
    list_per_page = 50
    search_fields = ("pk",)
    search_help_text = gettext_lazy(
        "An id or its beginning, a key, a task's name, args.NAME:VALUE, tag:TAG or error:TEXT"
    )
    ordering = ("-pk",)
    actions = FUNCTIONS
    change_list_template = "admin/jobqueue/task/change_list.html"

    has_requeue_permission, has_cancel_permission = permission(REQUEUE.permission), permission(CANCEL.permission)
    has_wake_permission, has_remove_permission = permission(RUN_NOW.permission), permission(DELETE.permission)

    class Media:
        js = [Script("jobqueue/copy.js", type="module")]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.task_page = TaskPage(self)
        self.pages = [
            ColumnsPage(self), FailuresPage(self), SummaryPage(self, Scope.TASK), EnqueuePage(self),
            WorkflowsPage(self), JournalPage(self.task_page), self.task_page,
        ]  # fmt: skip

    # --- one task

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Task | None:
        return find_task(object_id, databases())

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return self.task_page.view(request, object_id)

    # --- the list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        return super().get_queryset(request).filter(backend__in=backends_on(database_for(request)))

    def get_list_display(self, request: HttpRequest) -> Any:
        columns = [column for column, is_chosen in columns_for(request).items() if is_chosen]
        return [state, name, *(CELLS.get(column) or extensions.cell(column) for column in columns)]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        return TaskChangeList

    def get_changelist_instance(self, request: HttpRequest) -> TaskChangeList:
        """Keep the list on the request: the actions use its rows."""
        request.task_list = super().get_changelist_instance(request)  # type: ignore[attr-defined]
        return request.task_list  # type: ignore[attr-defined, no-any-return]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        return queryset, False  # the selection of the list applies it

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "GET" and (address := self._exact_address(request)):
            return HttpResponseRedirect(address)
        columns = columns_for(request)
        if request.POST.get("select_across") != "1":
            request.POST = _without_all(request.POST)  # type: ignore[assignment]
        titles = {**COLUMNS, **extensions.titles}
        choices = [(column, titles[column], is_chosen) for column, is_chosen in columns.items()]
        response = super().changelist_view(request, {"column_choices": choices, **(extra_context or {})})
        context = getattr(response, "context_data", None)
        if context and "cl" in context:
            number = context["cl"].number
            text = ngettext("%(number)s task selected", "All %(number)s tasks selected", number.number)
            context["selection_note_all"] = text % plural_values(number)
        return response

    def _exact_address(self, request: HttpRequest) -> str | None:
        """
        Return the address that says what is searched, if the given one needs to be interpreted; else None.

        Without it, a search without a word in front, or a time without a zone, could mean other tasks later on.
        """
        if not self.has_view_permission(request):
            return None
        query = request.GET.copy()
        if text := query.get("q"):
            del query["q"]
            may_see = request.user.has_perm("jobqueue.view_payload")
            for name, value in interpret(str(text), database_for(request), with_payload=may_see).items():
                query[name] = value
        for name in (*ENDED, *ENQUEUED):
            if name in query:
                moment = at(str(query[name]))
                if moment is not None:
                    query[name] = moment.isoformat()
                elif not query[name]:  # an empty field of the form
                    del query[name]
        return None if query == request.GET else f"{request.path}?{query.urlencode()}"


def _without_all(form: QueryDict) -> QueryDict:
    """Return the form without the value for all tasks, which a browser without JavaScript always sends."""
    form = form.copy()
    form.setlist(ACTION_CHECKBOX_NAME, [text for text in form.getlist(ACTION_CHECKBOX_NAME) if text != "all"])
    return form
