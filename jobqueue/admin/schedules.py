"""The list of schedules and its bulk actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from jobqueue.admin.base import ReadOnlyAdmin, database_for
from jobqueue.admin.filters import BackendFilter, Choices, ColumnFilter
from jobqueue.inspect.backends import backends_on
from jobqueue.inspect.formatting import short_type
from jobqueue.models import Schedule
from jobqueue.templatetags.jobqueue_admin import breakable, moment

IS_PAUSED = Q(paused_at__isnull=False) & (Q(resume_at__isnull=True) | Q(resume_at__gt=Now()))


class StateFilter(ColumnFilter):
    """Without a choice, the list leaves out the schedules that were removed from code."""

    title = gettext_lazy("state")
    parameter_name = "state"
    conditions = {
        "": Q(retired_at__isnull=True),
        "active": Q(retired_at__isnull=True) & ~IS_PAUSED,
        "paused": Q(retired_at__isnull=True) & IS_PAUSED,
        "removed": Q(retired_at__isnull=False),
    }

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [
            ("active", gettext_lazy("Active")),
            ("paused", gettext_lazy("Paused")),
            ("removed", gettext_lazy("Removed from code")),
        ]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield from [{**first, "display": gettext_lazy("All but removed")}, *others]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(self.conditions.get(self.value() or "", Q(pk__in=[])))


class OriginFilter(ColumnFilter):
    title = gettext_lazy("origin")
    parameter_name = "origin"
    conditions = {"code": ~Q(declared_at=""), "people": Q(declared_at="")}

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [("code", gettext_lazy("Declared in code")), ("people", gettext_lazy("Created by people"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(self.conditions.get(chosen, Q(pk__in=[]))) if chosen else queryset


class ScheduleAdmin(ReadOnlyAdmin):
    """`now` is an attribute that the query adds to a schedule."""

    list_display = ("title", "words", "next_run")
    list_display_links = ("title",)
    list_filter = (StateFilter, OriginFilter, BackendFilter)
    list_per_page = 100
    search_fields = ("name", "task_type")
    search_help_text = gettext_lazy("Name or task")
    ordering = ("name", "pk")
    actions = None
    change_list_template = "admin/jobqueue/schedule/change_list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(now=Now())
        return rows.filter(backend__in=backends_on(database_for(request)))

    @admin.display(description=gettext_lazy("schedule"))
    def title(self, schedule: Any) -> SafeString:
        short = breakable(short_type(schedule.task_type))
        task = format_html('<span class="jq-key" title="{}">{}</span>', schedule.task_type, short)
        return format_html('<span class="jq-name">{}</span>{}', breakable(schedule.name), task)

    @admin.display(description=gettext_lazy("expression"))
    def words(self, schedule: Schedule) -> str:
        return schedule.expression

    @admin.display(description=gettext_lazy("next run"))
    def next_run(self, schedule: Any) -> SafeString:
        return moment(schedule.due_at, schedule.now)
