"""Executors, and the tasks that they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db import OperationalError
from django.db.models import QuerySet, Value
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import api
from jobqueue.admin.base import ReadOnlyAdmin, permission
from jobqueue.admin.filters import BackendFilter
from jobqueue.admin.html import executor_badge, moment
from jobqueue.admin.task_list import CappedPaginator
from jobqueue.api.schedule_deployments import VERSION as SCHEDULES
from jobqueue.engine import Count, gone, with_heartbeat
from jobqueue.models import Executor, Task
from jobqueue.operations.backends import backends_on, options_of
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.executors import ExecutorState
from jobqueue.operations.formatting import duration, served, short_id, short_type
from jobqueue.operations.task.inbox import find_actor
from jobqueue.values.states import Command, PoolName

ROW = "row"  # of a button in the row of an executor: the action and the id
RESTARTS_SHOWN = 20
GONE_SHOWN = 100
SHOWN = 5  # running tasks per executor in the list
READ = 2000  # running tasks read for a page


class ExecutorChangeList(ChangeList):
    """One page of executors, each with its running tasks. Those that are gone are folded away below the list."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        rows = super().get_queryset(request, exclude_parameters)
        timeouts = [options_of(backend).heartbeat_timeout for backend in backends_on(rows.db)]
        is_gone = gone(max(timeouts, default=0.0))
        self.all_gone = rows.filter(is_gone)
        return rows.exclude(is_gone)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        add_running_tasks(self.result_list, self.root_queryset.db)
        mark_versions(self.result_list)
        rows = list(self.all_gone[: GONE_SHOWN + 1])
        self.gone = rows[:GONE_SHOWN]
        number = Count.capped(len(rows), GONE_SHOWN)
        text = ngettext("%(number)s executor that is gone", "%(number)s executors that are gone", number.number)
        self.gone_text = text % {"number": number}


def add_running_tasks(executors: Iterable[Any], database: str) -> None:
    """Read the running tasks of executors."""
    running = Task.objects.using(database).running().filter(executor_id__in=[row.pk for row in executors])
    tasks_of: dict[UUID | None, list[Task]] = defaultdict(list)
    for task in running.only("task_type", "executor_id", "claimed_at", "pool")[:READ]:
        tasks_of[task.executor_id].append(task)
    for row in executors:
        row.tasks = tasks_of[row.pk]


def mark_versions(executors: Iterable[Any]) -> None:
    """Say for each executor how its code differs from that of the one of its backend that started last."""
    newest = {row.backend: row.versions for row in sorted(executors, key=lambda row: row.started_at)}
    for row in executors:
        row.differences = list(differences(row.versions, newest[row.backend]))


def differences(versions: Mapping[str, str], newest: Mapping[str, str]) -> Iterator[str]:
    names = {name for name in versions.keys() | newest if versions.get(name) != newest.get(name)}
    texts = [f"{name} {versions.get(name, '–')} ≠ {newest.get(name, '–')}" for name in sorted(names - {SCHEDULES})]
    if texts:
        yield _("other versions than the newest: %(names)s") % {"names": ", ".join(texts)}
    if SCHEDULES in names:  # these versions are digests
        yield _("its code declares other schedules than the newest executor's")


class ExecutorAdmin(ReadOnlyAdmin):
    """`now`, `tasks` and the versions are attributes that the list and the page add to an executor."""

    list_display = ("name", "life", "runs", "busy", "queue_names", "started", "beat")  # a name has host and process
    list_filter = (BackendFilter,)
    list_per_page = 100
    ordering = ("-heartbeat__at",)
    paginator = CappedPaginator
    actions = ("pause_selected", "resume_selected", "stop_selected")
    fields = (
        "name", "life", "runs", "busy", "queue_names", "backend", "host", "pid", "software", "started", "beat",
    )  # fmt: skip
    readonly_fields = fields
    has_command_permission = permission("command_executor")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        may_view_tasks = Value(request.user.has_perm("jobqueue.view_task"))
        rows: QuerySet[Any] = super().get_queryset(request).defer("task_types")
        rows = rows.annotate(now=Now(), may_view_tasks=may_view_tasks)
        return with_heartbeat(rows)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        executor = super().get_object(request, object_id, from_field)
        if executor is not None:
            add_running_tasks([executor], executor._state.db)
        return executor

    def get_list_display(self, request: HttpRequest) -> Any:
        return (*self.list_display, *(("buttons",) if self.has_command_permission(request) else ()))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. A button in a row is the action of this row."""
        if ROW in request.POST:
            action, _colon, pk = request.POST[ROW].partition(":")
            data = request.POST.copy()
            data.update({"action": action, "select_across": "0"})
            data.setlist("action", [action])
            data.setlist(ACTION_CHECKBOX_NAME, [pk])
            request.POST = data  # type: ignore[assignment]
        return super().changelist_view(request, extra_context)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ExecutorChangeList

    @admin.action(description=gettext_lazy("Pause selected executors: claim no tasks"), permissions=["command"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Executor]) -> None:
        self._command(request, queryset, Command.PAUSE, _("Asked to pause."))

    @admin.action(description=gettext_lazy("Resume selected executors"), permissions=["command"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Executor]) -> None:
        self._command(request, queryset, Command.RESUME, _("Asked to resume."))

    @admin.action(description=gettext_lazy("Stop selected executors gracefully"), permissions=["command"])
    def stop_selected(self, request: HttpRequest, queryset: QuerySet[Executor]) -> HttpResponse | None:
        if "confirmed" in request.POST:
            self._command(request, queryset, Command.STOP, _("Asked to stop."))
            return None
        executors: list[Any] = list(queryset.exclude(heartbeat__state=Executor.State.STOPPED))
        add_running_tasks(executors, queryset.db)
        plain = [(task, row) for row in executors for task in row.tasks if find_actor(task) is None]
        button = ngettext("Stop %(count)d executor", "Stop %(count)d executors", len(executors))
        return self.confirm(
            request,
            [("action", "stop_selected"), *((ACTION_CHECKBOX_NAME, row.pk) for row in executors)],
            title=_("Stop executors?"),
            text=_(
                "These executors finish running tasks within their grace period, return the others to the queue, "
                "and exit. They are not restarted unless your service manager does it."
            ),
            template="executor/confirm",
            names=[f"{row.name} ({row.host})" for row in executors],
            restarts=[
                (task, short_type(task.task_type), short_id(task.pk), duration(row.now - task.claimed_at))
                for task, row in sorted(plain, key=lambda pair: pair[0].claimed_at or pair[1].now)[:RESTARTS_SHOWN]
                if task.claimed_at
            ],
            more_restarts=max(0, len(plain) - RESTARTS_SHOWN),
            button=button % {"count": len(executors)} if executors else "",
        )

    def _command(self, request: HttpRequest, queryset: QuerySet[Executor], command: Command, log_message: str) -> None:
        """Send a command to executors that have not stopped, and log it."""
        running = list(queryset.exclude(heartbeat__state=Executor.State.STOPPED))
        reachable = [row for row in running if row.backend in api.aliases()]
        for row in (row for row in running if row not in reachable):
            text = _("Executor %(name)s received no command: TASKS of this site has no backend %(backend)s.")
            messages.warning(request, text % {"name": row.name, "backend": row.backend})
        for backend in {row.backend for row in reachable}:
            try:
                api.command([row.pk for row in reachable if row.backend == backend], command, backend=backend)
            except OperationalError:  # lock timeout
                text = _("No command was sent: another transaction has locked an executor. Try again in a moment.")
                messages.error(request, text)
                return
        audit_log.write(request, reachable, log_message)
        if reachable:
            text = _("Sent the command %(command)s to %(names)s. The state below updates within seconds.")
            names = ", ".join(row.name for row in reachable)
            messages.success(request, text % {"command": command.lower(), "names": names})
        elif not running:
            messages.warning(request, _("The selected executors have stopped already."))

    @admin.display(description=gettext_lazy("state"))
    def life(self, executor: Any) -> SafeString:
        state = ExecutorState.of(executor, executor.now, options_of(executor.backend).heartbeat_timeout)
        badge = executor_badge(state)
        problem = [executor.heartbeat.problem] if executor.heartbeat.problem and state != ExecutorState.STOPPED else []
        for text in (*problem, *getattr(executor, "differences", ())):
            badge = format_html('{}<span class="jq-clock jq-error">{}</span>', badge, text)
        if not executor.command or state == ExecutorState.STOPPED:
            return badge
        text = _("command sent: %(command)s") % {"command": executor.command.lower()}
        return format_html('{} <span class="jq-quiet">{}</span>', badge, text)

    @admin.display(description=gettext_lazy("running tasks"), empty_value="–")
    def runs(self, executor: Any) -> SafeString | None:
        if not executor.tasks:
            return None
        links = (
            (
                reverse(f"{self.admin_site.name}:jobqueue_task_change", args=[task.pk]),
                task.task_type,
                short_type(task.task_type),
                duration(executor.now - task.claimed_at) if task.claimed_at else "",
            )
            for task in executor.tasks[:SHOWN]
        )
        if executor.may_view_tasks:
            named = format_html_join(", ", '<a href="{}" title="{}">{}</a> <span class="jq-quiet">{}</span>', links)
        else:
            named = format_html_join(", ", '<span title="{1}">{2}</span> <span class="jq-quiet">{3}</span>', links)
        more = len(executor.tasks) - SHOWN
        return named if more <= 0 else format_html("{}, +{}", named, more)

    @admin.display(description=gettext_lazy("busy"))
    def busy(self, executor: Any) -> str:
        in_threads = sum(task.pool == PoolName.THREADS for task in executor.tasks)
        in_async = len(executor.tasks) - in_threads
        numbers = {"busy": in_threads, "slots": executor.slots, "in_async": in_async, "async": executor.async_slots}
        if not (executor.async_slots or in_async):
            return _("%(busy)d/%(slots)d threads") % numbers
        return _("%(busy)d/%(slots)d threads, %(in_async)d/%(async)d async") % numbers

    @admin.display(description=gettext_lazy("commands"), empty_value="")
    def buttons(self, executor: Any) -> SafeString | None:
        if executor.heartbeat.state == Executor.State.STOPPED:
            return None
        is_paused = executor.heartbeat.state == Executor.State.PAUSED
        commands = [
            ("resume_selected", _("Resume")) if is_paused else ("pause_selected", _("Pause")),
            ("stop_selected", _("Stop…")),
        ]
        parts = ((ROW, f"{action}:{executor.pk}", f"{label} {executor.name}", label) for action, label in commands)
        buttons = format_html_join(" ", '<button type="submit" name="{}" value="{}" aria-label="{}">{}</button>', parts)
        return format_html('<span class="jq-row-buttons">{}</span>', buttons)

    @admin.display(description=gettext_lazy("queues"))
    def queue_names(self, executor: Any) -> str:
        return ", ".join(served(executor)) or _("every")

    @admin.display(description=gettext_lazy("versions"))
    def software(self, executor: Any) -> str:
        versions = sorted(executor.versions.items())
        return ", ".join(f"{name} {version}" for name, version in versions if name != SCHEDULES)

    @admin.display(description=gettext_lazy("started"))
    def started(self, executor: Any) -> SafeString:
        return moment(executor.started_at, executor.now)

    @admin.display(description=gettext_lazy("last heartbeat"))
    def beat(self, executor: Any) -> SafeString:
        return moment(executor.heartbeat.at, executor.now)
