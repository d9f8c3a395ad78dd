"""The task list and its bulk actions."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue.admin.base import database_for, permission
from jobqueue.admin.enqueue_page import EnqueuePage
from jobqueue.admin.extensions import extensions, links_html
from jobqueue.admin.failures import FailuresPage
from jobqueue.admin.filters import (
    BackendFilter,
    CauseFilter,
    EndedFilter,
    EnqueuedFilter,
    ExecutorFilter,
    LimitFilter,
    ParentFilter,
    QueueFilter,
    ScheduleFilter,
    StatusFilter,
    TagFilter,
    TaskNameFilter,
)
from jobqueue.admin.html import badge, breakable, moment, with_moment
from jobqueue.admin.summaries import SummaryPage
from jobqueue.admin.task_list import TaskChangeList
from jobqueue.admin.task_page import level_of
from jobqueue.engine import Count
from jobqueue.models import Task
from jobqueue.operations.backends import backends_on, options_of
from jobqueue.operations.bulk import actor as bulk_actor
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.bulk.actions import CANCEL, DELETE, DISCARD, REQUEUE, RUN_NOW, BulkAction, plural_values
from jobqueue.operations.bulk.target import EXAMPLES, MAX_IN_REQUEST, BulkRun, Target, perform_ids, perform_now
from jobqueue.operations.formatting import Text, attempts_text, duration, short_id, short_type, time_run, when
from jobqueue.operations.list.interpretation import interpret
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.selection import ENDED, ENQUEUED, at, to_uuid
from jobqueue.values.counters import Scope

# The columns after status and task, which a user may choose, with their titles; and those shown at first.
COLUMNS: dict[str, Text] = {
    "arguments": gettext_lazy("arguments"),
    "queue": gettext_lazy("queue"),
    "attempt": gettext_lazy("attempt"),
    "time": gettext_lazy("when"),
    "enqueued": gettext_lazy("enqueued"),
    "error": gettext_lazy("error"),
}
SHOWN = [name for name in COLUMNS if name != "enqueued"]
SESSION_KEY = "jobqueue_columns"


class RateForm(forms.Form):
    """A rate: how many tasks a second an action may change."""

    rate = forms.IntegerField(
        label=gettext_lazy("Tasks a second"),
        required=False,
        min_value=1,
        max_value=bulk_actor.MAX_RATE,
        help_text=gettext_lazy("For example 100, to spare a service that was down. Leave it empty for no limit."),
    )


class TaskAdmin(FailuresPage, SummaryPage, EnqueuePage):
    scope = Scope.TASK
    list_display_links = ("name",)
    list_filter = (
        StatusFilter, QueueFilter, TaskNameFilter, TagFilter, BackendFilter, CauseFilter, ParentFilter, ScheduleFilter,
        LimitFilter, ExecutorFilter, EnqueuedFilter, EndedFilter,
    )  # fmt: skip
    list_per_page = 50
    search_fields = ("pk",)
    search_help_text = gettext_lazy(
        "An id or its beginning, a key, a task's name, args.NAME:VALUE, tag:TAG or error:TEXT"
    )
    ordering = ("-pk",)
    actions = ("requeue_selected", "cancel_selected", "wake_selected", "discard_selected", "delete_ended")
    change_list_template = "admin/jobqueue/task/change_list.html"

    # --- the list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        return super().get_queryset(request).filter(backend__in=backends_on(database_for(request)))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.columns_view)
        return [path("columns/", view, name="jobqueue_task_columns"), *super().get_urls()]

    def columns_view(self, request: HttpRequest) -> HttpResponse:
        """Keep the chosen columns in the session."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        titles = {**COLUMNS, **extensions.titles}
        request.session[SESSION_KEY] = [name for name in titles if name in request.POST.getlist("column")]
        address = reverse(f"{self.admin_site.name}:jobqueue_task_changelist")
        query = QueryDict(request.POST.get("query", "")).urlencode()
        return HttpResponseRedirect(f"{address}?{query}" if query else address)

    def get_list_display(self, request: HttpRequest) -> Any:
        columns = [name for name, is_chosen in self._columns(request).items() if is_chosen]
        return ["state", "name", *(name if name in COLUMNS else extensions.cell(name) for name in columns)]

    def _columns(self, request: HttpRequest) -> dict[str, bool]:
        """Return the columns that the user may choose, and whether each is shown."""
        titles = extensions.titles
        selected = request.session.get(SESSION_KEY, [*SHOWN, *titles])
        may_see = request.user.has_perm("jobqueue.view_payload")
        return {name: name in selected for name in (*COLUMNS, *titles) if may_see or name != "arguments"}

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
        columns = self._columns(request)
        if request.POST.get("select_across") != "1":
            request.POST = _without_all(request.POST)  # type: ignore[assignment]
        titles = {**COLUMNS, **extensions.titles}
        choices = [(name, titles[name], is_chosen) for name, is_chosen in columns.items()]
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

    @admin.display(description=gettext_lazy("status"))
    def state(self, task: Task) -> SafeString:
        return badge(task.status)

    @admin.display(description=gettext_lazy("task"))
    def name(self, task: Task) -> SafeString:
        short = breakable(short_type(task.task_type))
        name = format_html('<span class="jq-name" title="{} {}">{}</span>', task.task_type, task.pk, short)
        key = "" if task.key is None else format_html('<span class="jq-key">{}</span>', task.key)
        tags = format_html_join("", '<span class="jq-tag">{}</span>', ([tag] for tag in task.tags or ()))
        return format_html('{}{}<span class="jq-id">{}</span>{}', name, key, short_id(task.pk), tags)

    @admin.display(description=COLUMNS["arguments"], empty_value="")
    def arguments(self, task: Any) -> SafeString:
        """Show the arguments, and below them the links of the site."""
        call = format_html('<code class="jq-call">{}</code>', task.call) if task.call else ""
        return format_html("{}{}", call, links_html(extensions.read_links(task, task.named_arguments)))

    @admin.display(description=COLUMNS["queue"])
    def queue(self, task: Task) -> SafeString:
        if not task.priority:
            return format_html("{}", task.queue_name)
        text = _("priority %(number)d") % {"number": task.priority}
        return format_html('{} <span class="jq-quiet">{}</span>', task.queue_name, text)

    @admin.display(description=COLUMNS["attempt"], empty_value="")
    def attempt(self, task: Any) -> SafeString | None:
        """Show the number of the attempt, and below it how long it took."""
        text, length = attempts_text(task), time_run(task)
        if not text:
            return None
        # On a phone, columns have no titles.
        number = format_html('<span class="jq-label">{} </span>{}', _("attempt"), text)
        if length is None:
            return number
        return format_html('{}<span class="jq-clock">{}</span>', number, duration(length))

    @admin.display(description=COLUMNS["time"])
    def time(self, task: Any) -> SafeString:
        text, at = when(task, task.now, options_of(task.backend).aging, task.executor_name)
        text = re.sub(r"(?<=\d) ", "\xa0", text)  # units stay with their numbers
        return with_moment(moment(at, text=text), at, task.now)

    @admin.display(description=COLUMNS["enqueued"])
    def enqueued(self, task: Any) -> SafeString:
        return with_moment(moment(task.enqueued_at, task.now), task.enqueued_at, task.now)

    @admin.display(description=COLUMNS["error"], empty_value="")
    def error(self, task: Any) -> SafeString | None:
        if not task.headline:
            return None
        return format_html('<span class="jq-line-of-error jq-error" title="{0}">{0}</span>', task.headline)

    # --- actions

    has_requeue_permission, has_cancel_permission = permission(REQUEUE.permission), permission(CANCEL.permission)

    @admin.action(description=REQUEUE.label_many, permissions=["requeue"])
    def requeue_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, REQUEUE)

    @admin.action(description=CANCEL.label_many, permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, CANCEL)

    has_wake_permission, has_remove_permission = permission(RUN_NOW.permission), permission(DELETE.permission)

    @admin.action(description=RUN_NOW.label_many, permissions=["wake"])
    def wake_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, RUN_NOW)

    @admin.action(description=DISCARD.label_many, permissions=["cancel"])
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, DISCARD)

    @admin.action(description=DELETE.label_many, permissions=["remove"])
    def delete_ended(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._perform(request, queryset, DELETE)

    def _perform(self, request: HttpRequest, rows: QuerySet[Task], action: BulkAction) -> HttpResponse | None:
        """
        Perform an action at once on one task, unless it is destructive, and after a confirmation on others.

        The address (the list's filters) and the bounds identify the rows, not a list of ids. So the confirmation of a
        million tasks is as small as that of ten.
        """
        task_list: TaskChangeList = request.task_list  # type: ignore[attr-defined]
        if request.POST.get("select_across") != "1":
            ticked = [pk for text in request.POST.getlist(ACTION_CHECKBOX_NAME) if (pk := to_uuid(text))]
            if "confirmed" not in request.POST and (len(ticked) != 1 or action.is_destructive):
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
        self.message_user(request, _("This runs in the background; cancel this task to stop it."))
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
            words=target.selection.words,
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
        numbers = plural_values(Count(number))
        button = str(action.button % numbers)
        return self.confirm(
            request,
            [("action", "delete_ended" if action is DELETE else f"{action.name}_selected"), *hidden],
            template="task/confirm",
            title=_("%(action)s?") % {"action": button} if number else _("Nothing to change"),
            names=[action.forecast % numbers],
            button=button if number else "",
            refusal=action.refusal if number else _("Go back"),
            is_destructive=action.is_destructive,
            number=number,
            examples=read_rows(
                self.get_queryset(request), examples, with_payload=request.user.has_perm("jobqueue.view_payload")
            ),
            **context,
        )


def _without_all(form: QueryDict) -> QueryDict:
    """Return the form without the value for all tasks, which a browser without JavaScript always sends."""
    form = form.copy()
    form.setlist(ACTION_CHECKBOX_NAME, [text for text in form.getlist(ACTION_CHECKBOX_NAME) if text != "all"])
    return form
