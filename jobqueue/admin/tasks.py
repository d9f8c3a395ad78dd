"""The task list and its bulk actions."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import bulk_actor
from jobqueue.admin.base import database_for, permission
from jobqueue.admin.failures import FailuresPage
from jobqueue.admin.filters import (
    BackendFilter,
    CauseFilter,
    LimitFilter,
    ParentFilter,
    QueueFilter,
    ScheduleFilter,
    StatusFilter,
    TaskFilter,
)
from jobqueue.admin.summaries import SummaryPage
from jobqueue.admin.task_list import TaskChangeList, read_rows
from jobqueue.admin.task_page import TaskPage, level_of
from jobqueue.inspect import audit_log
from jobqueue.inspect.backends import backends_on, options_of
from jobqueue.inspect.bulk import (
    CANCEL,
    EXAMPLES,
    MAX_IN_REQUEST,
    REQUEUE,
    BulkAction,
    BulkRun,
    Target,
    numbers_of,
    perform_ids,
    perform_now,
)
from jobqueue.inspect.formatting import attempts_text, headline, short_type, when
from jobqueue.inspect.queries import Count
from jobqueue.inspect.selection import to_uuid
from jobqueue.metrics import Scope
from jobqueue.models import Task
from jobqueue.templatetags.jobqueue_admin import badge, breakable, moment


class RateForm(forms.Form):
    """How many tasks a second an action may change."""

    rate = forms.IntegerField(
        label=gettext_lazy("Tasks a second"),
        required=False,
        min_value=1,
        max_value=bulk_actor.MAX_RATE,
        help_text=gettext_lazy("For example 100, to spare a service that was down. Leave it empty for no limit."),
    )


class TaskAdmin(FailuresPage, SummaryPage, TaskPage):
    scope = Scope.TASK
    list_display = ("state", "name", "queue_name", "priority", "tries", "time", "error")
    list_display_links = ("name",)
    list_filter = (
        StatusFilter, QueueFilter, TaskFilter, BackendFilter, CauseFilter, ParentFilter, ScheduleFilter, LimitFilter,
    )  # fmt: skip
    list_per_page = 100
    search_fields = ("pk",)
    search_help_text = gettext_lazy("Task id (or its first characters), or key:<key>")
    ordering = ("-pk",)
    actions = ("requeue_selected", "cancel_selected")
    change_list_template = "admin/jobqueue/task/change_list.html"

    # --- the list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        return super().get_queryset(request).filter(backend__in=backends_on(database_for(request)))

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
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None)
        if context and "cl" in context:
            number = context["cl"].number
            text = ngettext("%(number)s task selected", "All %(number)s tasks selected", number.number)
            context["selection_note_all"] = text % numbers_of(number)
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
        return attempts_text(task)

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
        if request.POST.get("select_across") != "1":
            ticked = [pk for text in request.POST.getlist(ACTION_CHECKBOX_NAME) if (pk := to_uuid(text))]
            if "confirmed" not in request.POST and len(ticked) != 1:
                return self._confirm_ticked(request, action, ticked)
            run = perform_ids(action, ticked)
            self._report(request, run, rows.db, None)
            return None
        if task_list.confirmed is None:
            return self._confirm_all(request, Target.of(task_list.selection, action))
        target = Target(task_list.selection, action, task_list.confirmed)
        form = RateForm(request.POST) if action.has_rate else None
        if form is not None and not form.is_valid():
            return self._confirm_all(request, target, form)
        rate = form.cleaned_data["rate"] if form is not None else None
        if rate or (target.bounds.number or 0) > MAX_IN_REQUEST:
            return self._start(request, target, rate)
        self._report(request, perform_now(target), rows.db, request.META.get("QUERY_STRING") or _("no filter"))
        return None

    def _report(self, request: HttpRequest, run: BulkRun, database: str, chosen_by: str | None) -> None:
        self.message_user(request, str(run), level_of(run))
        if run.affected:
            audit_log.write_run(request, run, database, chosen_by)

    def _start(self, request: HttpRequest, target: Target, rate: int | None) -> HttpResponse:
        """Let a task of the queue perform the action, and show its page."""
        result = bulk_actor.start(target, rate)
        chosen_by = request.META.get("QUERY_STRING") or _("no filter")
        audit_log.write_start(request, target.action, target.bounds.number or 0, result.id, chosen_by)
        self.message_user(request, _("A task does this. Cancel the task to stop it."))
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobqueue_task_change", args=[result.id]))

    def _confirm_ticked(self, request: HttpRequest, action: BulkAction, ticked: list[UUID]) -> HttpResponse:
        rows = self.get_queryset(request).filter(pk__in=ticked)
        matching = set(rows.filter(status__in=action.statuses).values_list("pk", flat=True))
        return self._confirm(
            request,
            action,
            number=len(matching),
            other=Count(len(ticked) - len(matching)),
            examples=[pk for pk in ticked if pk in matching][:EXAMPLES],
            hidden=[("confirmed", "1"), ("select_across", "0"), *((ACTION_CHECKBOX_NAME, pk) for pk in ticked)],
        )

    def _confirm_all(self, request: HttpRequest, target: Target, form: RateForm | None = None) -> HttpResponse:
        number = target.bounds.number or 0
        return self._confirm(
            request,
            target.action,
            number=number,
            other=target.other,
            examples=target.examples,
            hidden=[("select_across", "1"), ("bounds", target.bounds), (ACTION_CHECKBOX_NAME, "all")],
            form=form or (RateForm() if target.action.has_rate and number > 1 else None),
            window=target.selection.window,
            is_across=True,
            is_task=number > MAX_IN_REQUEST,
        )

    def _confirm(
        self,
        request: HttpRequest,
        action: BulkAction,
        *,
        number: int,
        examples: list[UUID],
        hidden: list[tuple[str, object]],
        **context: Any,
    ) -> HttpResponse:
        numbers = numbers_of(Count(number))
        button = str(action.button % numbers)
        return self.confirm(
            request,
            [("action", f"{action.name}_selected"), *hidden],
            template="task/confirm",
            title=_("%(action)s?") % {"action": button} if number else _("Nothing to change"),
            names=[action.forecast % numbers],
            button=button if number else "",
            refusal=action.refusal if number else _("Go back"),
            is_destructive=action.is_destructive,
            number=number,
            examples=read_rows(self.get_queryset(request), examples),
            **context,
        )
