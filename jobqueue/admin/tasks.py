"""The task list and its bulk actions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin.base import database_for, permission
from jobqueue.admin.filters import (
    BackendFilter,
    ParentFilter,
    QueueFilter,
    ScheduleFilter,
    StatusFilter,
    TaskFilter,
    to_uuid,
)
from jobqueue.admin.task_list import ORDER, Search, TaskChangeList
from jobqueue.admin.task_page import TaskPage, level_of
from jobqueue.inspect import audit_log
from jobqueue.inspect.backends import backends_on, options_of
from jobqueue.inspect.bulk import (
    BUDGET_SECONDS,
    CANCEL,
    REQUEUE,
    Bounds,
    BulkAction,
    Preview,
    numbers_of,
    perform_ids,
    perform_matching,
)
from jobqueue.inspect.formatting import attempts_text, headline, short_type, when
from jobqueue.models import Task
from jobqueue.templatetags.jobqueue_admin import badge, breakable, moment


class TaskAdmin(TaskPage):
    list_display = ("state", "name", "queue_name", "priority", "tries", "time", "error")
    list_display_links = ("name",)
    list_filter = (StatusFilter, QueueFilter, TaskFilter, BackendFilter, ParentFilter, ScheduleFilter)
    list_per_page = 100
    search_fields = ("pk",)
    search_help_text = gettext_lazy("Task id (or its first characters), or key:<key>")
    ordering = ("-pk",)
    actions = ("requeue_selected", "cancel_selected")
    change_list_template = "admin/jobqueue/task/change_list.html"

    # --- the list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        # With one backend this is an equality, as the indexes on `backend` need.
        return super().get_queryset(request).filter(backend__in=backends_on(database_for(request)))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        return TaskChangeList

    def get_changelist_instance(self, request: HttpRequest) -> TaskChangeList:
        """Keep the list on the request: the actions use its rows."""
        request.task_list = super().get_changelist_instance(request)  # type: ignore[attr-defined]
        return request.task_list  # type: ignore[attr-defined, no-any-return]

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return (ORDER.get(request.GET.get("status", ""), "-pk"),)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        return queryset.filter(Search.parse(search_term).condition), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None)
        if context and "cl" in context and context["cl"].is_capped:
            context["selection_note_all"] = _("All matching tasks selected")
        return response

    @admin.display(description=gettext_lazy("status"))
    def state(self, task: Task) -> SafeString:
        return badge(task.status)

    @admin.display(description=gettext_lazy("task"))
    def name(self, task: Task) -> SafeString:
        short = breakable(short_type(task.task_type))
        name = format_html('<span class="jq-name" title="{} {}">{}</span>', task.task_type, task.pk, short)
        return name if task.key is None else format_html('{}<span class="jq-key">{}</span>', name, task.key)

    @admin.display(description=gettext_lazy("attempts"))
    def tries(self, task: Any) -> str:
        return attempts_text(task, task.starts)

    @admin.display(description=gettext_lazy("when"))
    def time(self, task: Any) -> SafeString:
        words, at = when(task, task.now, options_of(task.backend).aging, task.executor_name)
        return moment(at, words=re.sub(r"(?<=\d) ", "\xa0", words))  # units stay with their numbers

    @admin.display(description=gettext_lazy("error"), empty_value="")
    def error(self, task: Any) -> SafeString | None:
        line = headline(task.error_class, task.error_message)
        if not line:
            return None
        return format_html('<span class="jq-line-of-error jq-error" title="{0}">{0}</span>', line)

    # --- actions

    has_requeue_permission, has_cancel_permission = permission("requeue_task"), permission("cancel_task")

    @admin.action(description=REQUEUE.label_many, permissions=["requeue"])
    def requeue_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, REQUEUE)

    @admin.action(description=CANCEL.label_many, permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, CANCEL)

    def _perform(self, request: HttpRequest, rows: QuerySet[Task], action: BulkAction) -> HttpResponse | None:
        """
        Perform an action on one task at once, on more after a confirmation.

        The address (the list's filters) and the bounds identify the rows, not a list of ids. So the confirmation of a
        million tasks is as small as that of ten.
        """
        task_list: TaskChangeList = request.task_list  # type: ignore[attr-defined]
        is_across = request.POST.get("select_across") == "1"
        ticked = (
            [] if is_across else [pk for text in request.POST.getlist(ACTION_CHECKBOX_NAME) if (pk := to_uuid(text))]
        )
        if not is_across:  # even if the filters no longer match them
            rows = self.get_queryset(request).filter(pk__in=ticked)
        bounds = task_list.confirmed
        if bounds is None and len(ticked) != 1:
            return self._confirm(request, rows, action, ticked, Bounds.now(rows.db, task_list.edge))
        is_filter = bounds is not None and is_across
        run = perform_matching(action, rows, bounds) if bounds and is_across else perform_ids(action, ticked)
        text = str(run) if run.resume_at is None else _("%(result)s There are more.") % {"result": run}
        self.message_user(request, text, level_of(run))
        if run.affected:
            query = request.META.get("QUERY_STRING") or _("no filter")
            audit_log.write_run(request, run, rows.db, query if is_filter else None)
        if bounds is None or run.resume_at is None:
            return None
        return self._confirm(request, rows, action, ticked, replace(bounds, upto=run.resume_at), is_rest=True)

    def _confirm(
        self,
        request: HttpRequest,
        rows: QuerySet[Task],
        action: BulkAction,
        ticked: list[UUID],
        bounds: Bounds,
        *,
        is_rest: bool = False,
    ) -> HttpResponse:
        preview = Preview.of(action, rows, bounds)
        numbers = numbers_of(preview.matching)
        boxes: list[object] = [*ticked] or ["all"]
        hidden = [
            ("action", f"{action.name}_selected"),
            ("select_across", "0" if ticked else "1"),
            ("bounds", bounds),
            *((ACTION_CHECKBOX_NAME, box) for box in boxes),
        ]
        return self.confirm(
            request,
            hidden,
            template="task/confirm",
            title=_("%(action)s tasks?") % {"action": action.label},
            names=[action.forecast % numbers],
            button=action.label if preview.matching else "",
            preview=preview,
            window=None if ticked else request.task_list.window,  # type: ignore[attr-defined]
            is_across=not ticked,
            is_rest=is_rest,
            budget_seconds=round(BUDGET_SECONDS),
        )
