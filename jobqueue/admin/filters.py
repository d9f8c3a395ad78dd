"""Filters of the task list. Their choices come from code, settings and few rows, never from DISTINCT over tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import ListFilter, ModelAdmin, SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.base import database_for
from jobqueue.api import aliases
from jobqueue.declarations import registry
from jobqueue.models import Executor, Schedule, Task
from jobqueue.operations.backends import backends_on
from jobqueue.operations.formatting import local, short_id, short_type, shortened
from jobqueue.operations.limits import Key
from jobqueue.operations.list.failures import newest_titles, read_titles
from jobqueue.operations.list.names import known_queues, known_tags
from jobqueue.operations.list.selection import ENDED, ENQUEUED, KIND_BATCH, KIND_WORKFLOW, at, to_id, to_uuid
from jobqueue.values.states import Status

CAUSES, EXECUTORS = 20, 30  # offered
CHARACTERS = 80  # of an error
FOLDED = "admin/jobqueue/task/folded_filter.html"  # unless a choice is selected
CHOICES = 200  # per filter; the address may contain others
Choices = Iterable[tuple[str, Any]]


class ColumnFilter(SimpleListFilter):
    """Rows with a value of one column. Without a column, the list itself applies the filter."""

    column = ""

    def value(self) -> str | None:
        """Return the selected value without NUL, which PostgreSQL does not allow in text."""
        return (super().value() or "").replace("\x00", "") or None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{self.column: self.value()}) if self.column and self.value() else queryset


class StatusFilter(ColumnFilter):
    """The tabs above the list show its choices."""

    title = _("status")
    parameter_name = "status"
    template = "admin/jobqueue/task/no_filter.html"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return Task.Status.choices


class QueueFilter(ColumnFilter):
    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [(name, name) for name in with_selected(known_queues(database_for(request)), self.value())]


class TaskNameFilter(ColumnFilter):
    title = _("task")
    parameter_name = "task"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        """Label tasks by their last component, or in full if two share it. Plain text: unfold makes a title of it."""
        names = with_selected(set(registry.by_name()), self.value())
        shared = Counter(map(short_type, names))
        labels = {name: name if shared[short_type(name)] > 1 else short_type(name) for name in names}
        return [(name, labels[name]) for name in sorted(names, key=lambda name: labels[name].casefold())]


class KindFilter(ColumnFilter):
    """Workflows or batches."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [(KIND_WORKFLOW, _("workflows")), (KIND_BATCH, _("batches"))]


class BackendFilter(ColumnFilter):
    """Shown if there are several backends. It also selects the database of the list."""

    title = _("backend")
    parameter_name = column = "backend"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        names = with_selected(set(aliases()), self.value())
        return [(name, name) for name in names] if len(names) > 1 else []


class ParentFilter(ColumnFilter):
    """Set by a link on a task's page; shown only while it is set."""

    title = _("parent")
    parameter_name = "parent"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        selected = self.value()
        return [(selected, short_id(selected))] if selected else []


class BatchFilter(ColumnFilter):
    """Set by links on a batch's page; shown only while it is set. Its members that failed or were cancelled."""

    title = _("unsuccessful members of the batch")
    parameter_name = "batch"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        selected = self.value()
        return [(selected, short_id(selected))] if selected else []


class CauseFilter(ColumnFilter):
    """
    Offers the causes that failed last. A search sets several, separated by commas.

    Readers who may not see errors are offered none: an address has the hash of a message, which they could guess.
    """

    title = _("error")
    parameter_name = "cause"
    template = FOLDED

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        selected = self.value()
        if not request.user.has_perm("jobqueue.view_payload"):  # the list says why it is empty
            return [(selected, gettext("hidden"))] if selected else []
        backend = request.GET.get("backend", "")
        backends = [backend] if backend in aliases() else backends_on(database_for(request))
        titles = newest_titles(backends, CAUSES)
        if selected and "," in selected:
            titles = {selected: gettext("%(number)s errors") % {"number": selected.count(",") + 1}, **titles}
        elif selected and selected not in titles:
            titles = {selected: selected, **read_titles(backends, [selected]), **titles}
        return [(cause, shortened(title or "?", CHARACTERS)) for cause, title in titles.items()]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the choices. Only failed tasks have a cause, so each choice selects their status, too."""
        everything, *causes = super().choices(changelist)
        yield everything
        for (cause, _title), choice in zip(self.lookup_choices, causes, strict=True):
            address = changelist.get_query_string({"status": Status.FAILED.value, self.parameter_name: cause}, ["p"])
            yield {**choice, "query_string": address}


class ScheduleFilter(ColumnFilter):
    """Set by a link on a schedule's page; shown only while it is set. The newest CAP tasks of a schedule."""

    title = _("schedule")
    parameter_name = "schedule"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        selected = self.value()
        if not selected:
            return []
        rows = Schedule.objects.using(database_for(request)).filter(pk=to_id(selected))
        return [(selected, rows.values_list("name", flat=True).first() or selected)]


class TagFilter(ColumnFilter):
    """Offers the tags that code declares, and the most frequent ones of the newest tasks."""

    title = _("tag")
    parameter_name = "tag"
    template = FOLDED

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        return [(tag, tag) for tag in with_selected(known_tags(database_for(request)), self.value())]


class LimitFilter(ColumnFilter):
    """Set by links on the pages of limits and tasks; shown only while it is set. The live tasks of a key."""

    title = _("limit")
    parameter_name = "limit"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        selected = self.value()
        if not selected:
            return []
        key = Key.parse(selected)
        return [(selected, key.title if key else selected)]


class ExecutorFilter(ColumnFilter):
    """Offers the executors with the last heartbeats. Others are set by links on the pages of executors and tasks."""

    title = _("executor")
    parameter_name = "executor"
    template = FOLDED

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Choices:
        selected, database = self.value(), database_for(request)
        rows = Executor.objects.using(database)
        recent = rows.filter(backend__in=backends_on(database)).order_by("-heartbeat__at")
        names = {str(pk): name for pk, name in recent.values_list("pk", "name")[:EXECUTORS]}
        if selected and selected not in names:
            others = rows.filter(pk__in=[to_uuid(selected)]).values_list("name", flat=True)
            names[selected] = others.first() or short_id(selected)
        return sorted(names.items(), key=lambda choice: choice[1])


class TimeFilter(ListFilter):
    """Tasks of a time: since, until, or both. An address contains moments, so it shows the same tasks tomorrow."""

    template = "admin/jobqueue/task/time_filter.html"
    parameter_names: tuple[str, str] = ("", "")  # of the start and the end
    LENGTHS = (
        (_("Last 15 minutes"), timedelta(minutes=15)),
        (_("Last hour"), timedelta(hours=1)),
        (_("Last 24 hours"), timedelta(days=1)),
        (_("Last 7 days"), timedelta(days=7)),
    )

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: ModelAdmin[Any]) -> None:
        super().__init__(request, params, model, model_admin)
        for name in self.expected_parameters():
            if name in params:
                values = params.pop(name)
                text = values[-1] if isinstance(values, list) else values  # a list since Django 5.0
                if text:
                    self.used_parameters[name] = text.replace("\x00", "")

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [*self.parameter_names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # the selection of the list applies it

    def choices(self, changelist: ChangeList) -> Iterator[dict[str, Any]]:
        """Yield the choices; the first one has what the form shows, too."""
        since, until = self.parameter_names
        times = {name: at(str(text)) for name, text in self.used_parameters.items()}
        fields = [(name, label, local_input(times.get(name))) for name, label in ((since, _("From")), (until, _("To")))]
        yield {
            "selected": not self.used_parameters,
            "query_string": changelist.get_query_string(remove=[since, until]),
            "display": _("All"),
            "fields": fields,
            "others": [(name, value) for name, value in changelist.params.items() if name not in (since, until, "p")],
        }
        now = timezone.now()
        for label, length in self.LENGTHS:
            moment = (now - length).replace(second=0, microsecond=0).isoformat()
            yield {
                "selected": False,
                "query_string": changelist.get_query_string({since: moment}, remove=[until]),
                "display": label,
            }


class EnqueuedFilter(TimeFilter):
    title = _("time of enqueue")
    parameter_names = ENQUEUED


class EndedFilter(TimeFilter):
    title = _("time of end")
    parameter_names = ENDED


def local_input(moment: datetime | None) -> str:
    """Return a moment as the value of a field for date and time, in the user's time zone."""
    return "" if moment is None else local(moment).strftime("%Y-%m-%dT%H:%M")


def with_selected(names: set[str], selected: str | None) -> list[str]:
    """Return sorted names, including the selected one."""
    return sorted({*sorted(names)[:CHOICES], *([selected] if selected else [])})
