"""Executors, and the tasks that they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
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
from jobqueue.admin.task_list import CappedPaginator
from jobqueue.inspect import audit_log
from jobqueue.inspect.backends import options_of
from jobqueue.inspect.formatting import duration, served, short_type
from jobqueue.inspect.stats import ExecutorState
from jobqueue.models import Executor, Task
from jobqueue.records import Command
from jobqueue.templatetags.jobqueue_admin import executor_badge, moment

SHOWN = 5  # running tasks per executor in the list
READ = 2000  # running tasks read for a page


class ExecutorChangeList(ChangeList):
    """One page of executors, each with its running tasks, with one more query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        with_tasks(self.result_list, self.root_queryset.db)


def with_tasks(executors: Iterable[Any], database: str) -> None:
    """Read the running tasks of executors."""
    running = Task.objects.using(database).running().filter(executor_id__in=[row.pk for row in executors])
    tasks_of: dict[UUID | None, list[Task]] = defaultdict(list)
    for task in running.only("task_type", "executor_id", "claimed_at")[:READ]:
        tasks_of[task.executor_id].append(task)
    for row in executors:
        row.tasks = tasks_of[row.pk]


class ExecutorAdmin(ReadOnlyAdmin):
    """`now` and `tasks` are attributes that the queries of the list and of the page add to an executor."""

    list_display = ("name", "life", "runs", "busy", "queue_names", "started", "beat")  # a name has host and process
    list_filter = (BackendFilter,)
    list_per_page = 100
    ordering = ("-heartbeat",)
    paginator = CappedPaginator
    actions = ("pause_selected", "resume_selected", "stop_selected")
    fields = (
        "name", "life", "runs", "busy", "queue_names", "backend", "host", "pid", "software", "started", "beat",
    )  # fmt: skip
    readonly_fields = fields
    has_command_permission = permission("command_executor")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).defer("task_types").annotate(now=Now())
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            with_tasks([found], found._state.db)
        return found

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
        executors = queryset.exclude(state=Executor.State.STOPPED)
        button = ngettext("Stop %(count)d executor", "Stop %(count)d executors", len(executors))
        return self.confirm(
            request,
            [("action", "stop_selected"), *((ACTION_CHECKBOX_NAME, row.pk) for row in executors)],
            title=_("Stop executors?"),
            text=_(
                "These executors finish running tasks within their grace period, return the others to the queue, "
                "and exit. They are not restarted unless your service manager does it."
            ),
            names=[f"{row.name} ({row.host})" for row in executors],
            button=button % {"count": len(executors)} if executors else "",
        )

    def _command(self, request: HttpRequest, queryset: QuerySet[Executor], command: Command, log_message: str) -> None:
        """Send a command to executors that have not stopped, and log it."""
        running = list(queryset.exclude(state=Executor.State.STOPPED))
        known = [row for row in running if row.backend in api.aliases()]
        for row in (row for row in running if row not in known):
            text = _("Executor %(name)s received no command: TASKS of this site has no backend %(backend)s.")
            messages.warning(request, text % {"name": row.name, "backend": row.backend})
        for backend in {row.backend for row in known}:
            api.command([row.pk for row in known if row.backend == backend], command, backend=backend)
        audit_log.write(request, known, log_message)
        if known:
            text = _("Sent the command %(command)s to %(names)s. The state below updates within seconds.")
            names = ", ".join(row.name for row in known)
            messages.success(request, text % {"command": command.lower(), "names": names})
        elif not running:
            messages.warning(request, _("The selected executors have stopped already."))

    @admin.display(description=gettext_lazy("state"))
    def life(self, executor: Any) -> SafeString:
        silent_seconds = (executor.now - executor.heartbeat).total_seconds()
        state = ExecutorState.of(executor, silent_seconds, options_of(executor.backend).heartbeat_timeout)
        badge = executor_badge(state)
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
        named = format_html_join(", ", '<a href="{}" title="{}">{}</a> <span class="jq-quiet">{}</span>', links)
        more = len(executor.tasks) - SHOWN
        return named if more <= 0 else format_html("{}, +{}", named, more)

    @admin.display(description=gettext_lazy("tasks/threads"))  # async tasks use no thread
    def busy(self, executor: Any) -> str:
        return f"{len(executor.tasks)}/{executor.slots}"

    @admin.display(description=gettext_lazy("queues"))
    def queue_names(self, executor: Any) -> str:
        return ", ".join(served(executor)) or _("every")

    @admin.display(description=gettext_lazy("versions"))
    def software(self, executor: Any) -> str:
        return ", ".join(f"{name} {version}" for name, version in sorted(executor.versions.items()))

    @admin.display(description=gettext_lazy("started"))
    def started(self, executor: Any) -> SafeString:
        return moment(executor.started_at, executor.now)

    @admin.display(description=gettext_lazy("last heartbeat"))
    def beat(self, executor: Any) -> SafeString:
        return moment(executor.heartbeat, executor.now)
