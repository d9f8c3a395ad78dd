"""The list of schedules and its bulk actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import api
from jobqueue.admin.base import PauseFields, ReadOnlyAdmin, permission
from jobqueue.admin.filters import BackendFilter, Choices, ColumnFilter
from jobqueue.admin.html import badge, breakable, moment, schedule_badge, tick_marks, took
from jobqueue.admin.schedule_editor import ScheduleEditor
from jobqueue.admin.schedule_page import SchedulePage, pause_with, perform, resume, run
from jobqueue.models import Schedule, is_paused
from jobqueue.operations.formatting import describe_schedule_pause, short_type
from jobqueue.operations.payloads import raw
from jobqueue.operations.schedules import describe_schedule, recent_ticks

MAX_SELECTED = 500  # schedules of one bulk action; Django accepts 1,000 fields


class StateFilter(ColumnFilter):
    """Without a choice, the list leaves out retired schedules."""

    title = gettext_lazy("state")
    parameter_name = "state"
    conditions = {
        "": Q(retired_at__isnull=True),
        "active": Q(retired_at__isnull=True) & ~is_paused(Now()),
        "paused": Q(retired_at__isnull=True) & is_paused(Now()),
        "retired": Q(retired_at__isnull=False),
    }

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [
            ("active", gettext_lazy("Active")),
            ("paused", gettext_lazy("Paused")),
            ("retired", gettext_lazy("Retired")),
        ]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield from [{**first, "display": gettext_lazy("All but retired")}, *others]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(self.conditions.get(self.value() or "", Q(pk__in=[])))


class OriginFilter(ColumnFilter):
    title = gettext_lazy("origin")
    parameter_name = "origin"
    conditions = {"code": ~Q(declared_at=""), "people": Q(declared_at="")}

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [("code", gettext_lazy("Declared in code")), ("people", gettext_lazy("Created by people"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        origin = self.value()
        return queryset.filter(self.conditions.get(origin, Q(pk__in=[]))) if origin else queryset


class ScheduleChangeList(ChangeList):
    """One page of schedules, each with its last ticks."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count  # or the search box shows it again
        self.result_list = list(self.result_list)
        recent = recent_ticks(self.result_list)
        for row in self.result_list:
            row.recent = recent[row.pk]

    def url_for_result(self, result: Any) -> str:
        """Return the address with the backend: databases number their schedules alike."""
        return f"{super().url_for_result(result)}?{urlencode({'backend': result.backend})}"


class ScheduleAdmin(ReadOnlyAdmin):
    """`now` and `recent` are attributes that the queries of the list add to a schedule."""

    list_display = ("title", "words", "next_tick", "last_task", "last_ticks")
    list_display_links = ("title",)
    list_filter = (StateFilter, OriginFilter, BackendFilter)
    list_per_page = 50
    search_fields = ("name", "task_type")
    search_help_text = gettext_lazy("Name or task")
    ordering = ("name", "pk")
    sortable_by: ClassVar[tuple[str, ...]] = ("title", "next_tick")
    actions = ("run_schedules", "pause_schedules", "resume_schedules")
    change_list_template = "admin/jobqueue/schedule/change_list.html"
    has_pause_permission, has_run_permission = permission("pause_schedule"), permission("run_schedule")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.editor, self.schedule_page = ScheduleEditor(self), SchedulePage(self)
        self.pages = [self.editor, self.schedule_page]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).defer("new_task").annotate(now=Now())
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        schedule = super().get_object(request, object_id, from_field)
        if schedule is not None:
            rows = Schedule.objects.using(schedule._state.db).filter(pk=schedule.pk)
            schedule.new_task_text = rows.values_list(raw("new_task"), flat=True).first()
        return schedule

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("jobqueue.add_schedule")) and bool(api.aliases())

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self.editor.add_view(request)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self.schedule_page.view(request, object_id)

    # --- the list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleChangeList

    @admin.display(description=gettext_lazy("schedule"), ordering="name")
    def title(self, schedule: Any) -> SafeString:
        short = breakable(short_type(schedule.task_type))
        name = format_html('<span class="jq-name">{}</span>', breakable(schedule.name))
        return format_html('{}<span class="jq-key" title="{}">{}</span>', name, schedule.task_type, short)

    @admin.display(description=gettext_lazy("expression"))
    def words(self, schedule: Schedule) -> str:
        return describe_schedule(schedule)

    @admin.display(description=gettext_lazy("next tick"), ordering="due_at")
    def next_tick(self, schedule: Any) -> SafeString:
        if schedule.retired_at is None and schedule.is_paused_at(schedule.now):
            why = describe_schedule_pause(schedule)
            return format_html('{} <span class="jq-quiet">{}</span>', schedule_badge(schedule), why)
        if schedule.retired_at is not None or schedule.due_at is None:
            return schedule_badge(schedule)
        return moment(schedule.due_at, schedule.now)

    @admin.display(description=gettext_lazy("last task"), empty_value="")
    def last_task(self, schedule: Any) -> SafeString | None:
        last = next((record for record in schedule.recent if record.has_task), None)
        if last is None:
            return None
        at = moment(last.tick.tick_at, schedule.now)
        return format_html('{} {} <span class="jq-quiet">{}</span>', badge(last.status), at, took(last))

    @admin.display(description=gettext_lazy("last 20 ticks"), empty_value="")
    def last_ticks(self, schedule: Any) -> SafeString | None:
        # reverse() for each of a thousand marks would take 30 ms.
        tasks = reverse(f"{self.admin_site.name}:jobqueue_task_changelist")
        marks = tick_marks(reversed(schedule.recent), schedule.timezone, tasks)
        return format_html('<span class="jq-strip">{}</span>', marks) if marks else None

    # --- actions

    @admin.action(description=gettext_lazy("Run selected schedules now…"), permissions=["run"])
    def run_schedules(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        if (rows := self._selected(request, queryset)) is None:
            return None
        if "confirmed" in request.POST:
            perform(self, request, rows, run, _("Enqueued a task."))
            return None
        button = ngettext("Enqueue %(count)d task", "Enqueue %(count)d tasks", len(rows)) % {"count": len(rows)}
        return self._ask_about(request, "run_schedules", rows, title=_("Run schedules now?"), button=button)

    @admin.action(description=gettext_lazy("Pause selected schedules…"), permissions=["pause"])
    def pause_schedules(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        if (rows := self._selected(request, queryset)) is None:
            return None
        form = PauseFields(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            perform(self, request, rows, pause_with(request, form), form.describe())
            return None
        button = ngettext("Pause %(count)d schedule", "Pause %(count)d schedules", len(rows)) % {"count": len(rows)}
        return self._ask_about(request, "pause_schedules", rows, title=_("Pause schedules?"), form=form, button=button)

    @admin.action(description=gettext_lazy("Resume selected schedules"), permissions=["pause"])
    def resume_schedules(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        if rows := self._selected(request, queryset):
            perform(self, request, rows, resume, _("Resumed."))

    def _selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Schedule] | None:
        """Return the selected schedules; None, with a message, if there are none or too many."""
        rows = list(queryset.filter(retired_at__isnull=True)[: MAX_SELECTED + 1])
        if len(rows) > MAX_SELECTED:
            text = _("Select at most %(count)d schedules at a time.") % {"count": MAX_SELECTED}
        elif not rows:
            text = _("The selected schedules are retired: code no longer declares them.")
        else:
            return rows
        self.message_user(request, text, messages.WARNING)
        return None

    def _ask_about(self, request: HttpRequest, action: str, rows: Sequence[Schedule], **context: Any) -> HttpResponse:
        hidden = [("action", action), ("confirmed", 1), *((ACTION_CHECKBOX_NAME, row.pk) for row in rows)]
        return self.confirm(request, hidden, names=[row.name for row in rows], **context)
