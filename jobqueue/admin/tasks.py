"""The task list and a task's page."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin import actions, render
from jobqueue.admin.actions import CANCEL, REQUEUE, Deed, Forecast, Tally
from jobqueue.admin.base import ReadOnlyAdmin, backends_on, database_for, databases, options_of
from jobqueue.admin.detail import describe, read_task
from jobqueue.admin.filters import BackendFilter, ParentFilter, QueueFilter, StatusFilter, TaskFilter
from jobqueue.admin.listing import CAP, ORDER, TaskChangeList
from jobqueue.admin.search import Search
from jobqueue.admin.words import headline, short_type, tries, when
from jobqueue.models import Task


class TaskAdmin(ReadOnlyAdmin[Task]):
    list_display = ("state", "name", "queue_name", "priority", "tries", "time", "error")
    list_display_links = ("name",)
    list_filter = (StatusFilter, QueueFilter, TaskFilter, BackendFilter, ParentFilter)
    list_per_page = 100
    search_fields = ("pk",)
    search_help_text = gettext_lazy("An id or the beginning of one, or key: and a task's key.")
    ordering = ("-pk",)
    actions = ("requeue_selected", "cancel_selected")
    change_list_template = "admin/jobqueue/task/change_list.html"

    # --- the list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        # With one backend this is an equality, which the indexes that begin with `backend` need.
        return super().get_queryset(request).filter(backend__in=backends_on(database_for(request)))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        return TaskChangeList

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
            context["selection_note_all"] = _("All that match selected")
        return response

    @admin.display(description=gettext_lazy("status"))
    def state(self, task: Task) -> SafeString:
        return render.badge(task.status)

    @admin.display(description=gettext_lazy("task"))
    def name(self, task: Task) -> SafeString:
        name = format_html(
            '<span class="jq-name" title="{} {}">{}</span>', task.task_type, task.pk, short_type(task.task_type)
        )
        return name if task.key is None else format_html('{}<span class="jq-key">{}</span>', name, task.key)

    @admin.display(description=gettext_lazy("attempts"))
    def tries(self, task: Task) -> str:
        return tries(task, task.starts)  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("when"))
    def time(self, task: Task) -> SafeString:
        now: datetime = task.now  # type: ignore[attr-defined]
        name: str | None = task.executor_name  # type: ignore[attr-defined]
        words, moment = when(task, now, options_of(task.backend).aging, name)
        return render.moment(moment, words)

    @admin.display(description=gettext_lazy("error"), empty_value="")
    def error(self, task: Task) -> SafeString | None:
        line = headline(task.error_class, task.error_message)  # type: ignore[attr-defined]
        if not line:
            return None
        # Of a task that came to a good end all the same, it is history.
        kind = "jq-quiet" if task.status == Task.Status.SUCCESSFUL else "jq-error"
        return format_html('<span class="jq-line-of-error {0}" title="{1}">{1}</span>', kind, line)

    # --- one task

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Task | None:
        for database in databases():
            try:
                return read_task(database, object_id)
            except (Task.DoesNotExist, ValidationError, ValueError):
                continue
        return None

    def get_urls(self) -> list[URLPattern]:
        return [
            path(
                f"<path:object_id>/{deed.name}/",
                self.admin_site.admin_view(self._view_of(deed)),
                name=f"jobqueue_task_{deed.name}",
            )
            for deed in (REQUEUE, CANCEL)
        ] + super().get_urls()

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show a task on a page without any form field: there is nothing here to be edited."""
        if request.method not in ("GET", "HEAD") or object_id is None:
            raise PermissionDenied
        task = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, task):
            raise PermissionDenied
        if task is None:
            return self._gone(request, object_id)
        database = task._state.db or databases()[0]
        context = {
            **self.admin_site.each_context(request),
            **describe(task, database, with_payload=request.user.has_perm("jobqueue.view_payload")),
            "deeds": [
                deed for deed in (REQUEUE, CANCEL) if self._allows(request, deed) and task.status in deed.statuses
            ],
            "opts": self.opts,
            "media": self.media,
            "original": task,
            "title": task.task_type,
            "has_view_permission": True,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/jobqueue/task/detail.html", context)

    def _view_of(self, deed: Deed) -> Any:
        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            task = self.get_object(request, unquote(object_id))
            if not self.has_view_permission(request, task) or not self._allows(request, deed):
                raise PermissionDenied
            if task is None:
                return self._gone(request, object_id)
            tally = Tally(deed)
            tally.perform([task.pk])
            self._tell(request, tally)
            if tally.changed:
                actions.log_one(request, task, tally)
            return self._redirect("change", task.pk)

        return view

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = _("There is no task %(id)s. Ended tasks are pruned after a while.") % {"id": unquote(object_id)}
        self.message_user(request, text, messages.WARNING)
        return self._redirect("changelist")

    def _redirect(self, page: str, *args: object) -> HttpResponse:
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobqueue_task_{page}", args=args))

    # --- actions

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("jobqueue.requeue_task"))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("jobqueue.cancel_task"))

    def _allows(self, request: HttpRequest, deed: Deed) -> bool:
        return bool(request.user.has_perm(f"jobqueue.{deed.name}_task"))

    @admin.action(description=REQUEUE.label_many, permissions=["requeue"])
    def requeue_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._many(request, queryset, REQUEUE)

    @admin.action(description=CANCEL.label_many, permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self._many(request, queryset, CANCEL)

    def _many(self, request: HttpRequest, rows: QuerySet[Task], deed: Deed) -> HttpResponse | None:
        """
        Do it to one task at once, to more after a confirmation.

        What is meant is said by the address (the list's filters), not by a list of ids, so that a
        confirmation of a million tasks is as small as that of ten.
        """
        is_across = request.POST.get("select_across") == "1"
        ticked = [] if is_across else [pk for text in request.POST.getlist(ACTION_CHECKBOX_NAME) if (pk := _uuid(text))]
        upto = _uuid(request.POST.get("upto"))
        if len(ticked) != 1 and upto is None:
            return self._confirm(request, rows, deed, ticked)
        if is_across:
            assert upto is not None
            tally = actions.perform(deed, rows, upto)
        else:
            tally = Tally(deed)
            tally.perform(ticked)
        self._tell(request, tally)
        if tally.changed and len(ticked) == 1:
            actions.log_one(request, Task.objects.using(rows.db).only("task_type").get(pk=ticked[0]), tally)
        elif tally.changed:
            actions.log_many(request, tally)
        return self._confirm(request, rows, deed, ticked, tally.rest) if tally.rest else None

    def _confirm(
        self, request: HttpRequest, rows: QuerySet[Task], deed: Deed, ticked: list[UUID], upto: UUID | None = None
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "deed": deed,
            "action": f"{deed.name}_selected",
            "forecast": Forecast.of(deed, rows, upto),
            "cap": CAP,
            "ticked": [str(pk) for pk in ticked] or ["all"],
            "is_across": not ticked,
            "is_rest": upto is not None,
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "opts": self.opts,
            "media": self.media,
            "title": _("%(deed)s tasks?") % {"deed": deed.label},
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/jobqueue/task/confirm.html", context)

    def _tell(self, request: HttpRequest, tally: Tally) -> None:
        level = messages.SUCCESS if tally.changed else messages.WARNING
        words = _("%(done)s.") if tally.rest is None else _("%(done)s; there are more.")
        self.message_user(request, words % {"done": tally}, level)


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text or "")
    except ValueError:
        return None
