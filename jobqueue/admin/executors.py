"""Executors, and the tasks that they run."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import api
from jobqueue.admin import render
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.admin.filters import BackendFilter
from jobqueue.admin.task_list import CappedPaginator
from jobqueue.inspect import audit_log
from jobqueue.inspect.backends import options_of
from jobqueue.inspect.formatting import Text, duration, served, short_type
from jobqueue.inspect.stats import ExecutorState
from jobqueue.models import Executor, Task
from jobqueue.records import Command

SHOWN = 5  # running tasks per executor in the list
READ = 2000  # running tasks read for a page


# CSS class, shape, word
BADGES: dict[ExecutorState, tuple[str, str, Text]] = {
    ExecutorState.ALIVE: ("alive", "●", gettext_lazy("Alive")),
    ExecutorState.PAUSED: ("draining", "◌", gettext_lazy("Paused")),
    ExecutorState.STOPPING: ("draining", "◔", gettext_lazy("Stopping")),
    ExecutorState.STOPPED: ("stopped", "■", gettext_lazy("Stopped")),
    ExecutorState.NOT_RESPONDING: ("lost", "✗", gettext_lazy("Not responding")),
}


class ExecutorChangeList(ChangeList):
    """One page of executors, each with its running tasks, with one more query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = with_tasks(self.result_list)


def with_tasks(rows: QuerySet[Executor]) -> list[Executor]:
    executors = list(rows)
    running = Task.objects.using(rows.db).running().filter(executor_id__in=[row.pk for row in executors])
    tasks_of: dict[UUID | None, list[Task]] = defaultdict(list)
    for task in running.only("task_type", "executor_id", "claimed_at")[:READ]:
        tasks_of[task.executor_id].append(task)
    for row in executors:
        row.tasks = tasks_of[row.pk]  # type: ignore[attr-defined]
    return executors


class ExecutorAdmin(ReadOnlyAdmin[Executor]):
    list_display = ("name", "life", "runs", "busy", "queue_names", "host", "process", "started", "beat")
    list_filter = (BackendFilter,)
    list_per_page = 100
    ordering = ("-heartbeat",)
    paginator = CappedPaginator
    actions = ("pause_selected", "resume_selected", "stop_selected")
    fields = (
        "name", "life", "runs", "busy", "queue_names", "backend", "host", "process", "software", "started", "beat",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Executor]:
        return super().get_queryset(request).annotate(now=Now())

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Executor | None:
        found = super().get_object(request, object_id, from_field)
        if found is None:
            return None
        return next(iter(with_tasks(self.get_queryset(request).using(found._state.db).filter(pk=found.pk))), None)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ExecutorChangeList

    def has_command_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("jobqueue.command_executor"))

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
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "executors": queryset.exclude(state=Executor.State.STOPPED),
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "opts": self.opts,
            "media": self.media,
            "title": _("Stop executors?"),
        }
        return TemplateResponse(request, "admin/jobqueue/executor/stop.html", context)

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
    def life(self, executor: Executor) -> SafeString:
        silent_seconds = (executor.now - executor.heartbeat).total_seconds()  # type: ignore[attr-defined]
        state = ExecutorState.of(executor, silent_seconds, options_of(executor.backend).heartbeat_timeout)
        badge = render.shaped(*BADGES[state])
        if not executor.command or state == ExecutorState.STOPPED:
            return badge
        text = _("command sent: %(command)s") % {"command": executor.command.lower()}
        return format_html('{} <span class="jq-quiet">{}</span>', badge, text)

    @admin.display(description=gettext_lazy("running tasks"))
    def runs(self, executor: Executor) -> SafeString:
        now: datetime = executor.now  # type: ignore[attr-defined]
        tasks: list[Task] = executor.tasks  # type: ignore[attr-defined]
        named = format_html_join(
            ", ",
            '<a href="{}" title="{}">{}</a> <span class="jq-quiet">{}</span>',
            (
                (
                    reverse(f"{self.admin_site.name}:jobqueue_task_change", args=[task.pk]),
                    task.task_type,
                    short_type(task.task_type),
                    duration(now - task.claimed_at) if task.claimed_at else "",
                )
                for task in tasks[:SHOWN]
            ),
        )
        more = len(tasks) - SHOWN
        if not tasks:
            return format_html("{}", "–")
        return named if more <= 0 else format_html("{} {}", named, _("and %(count)d more") % {"count": more})

    @admin.display(description=gettext_lazy("tasks/threads"))  # async tasks use no thread
    def busy(self, executor: Executor) -> str:
        return f"{len(executor.tasks)}/{executor.slots}"  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("queues"))
    def queue_names(self, executor: Executor) -> str:
        return ", ".join(served(executor)) or _("every")

    @admin.display(description=gettext_lazy("process"))
    def process(self, executor: Executor) -> str:
        return str(executor.pid)

    @admin.display(description=gettext_lazy("versions"))
    def software(self, executor: Executor) -> str:
        return ", ".join(f"{name} {version}" for name, version in sorted(executor.versions.items()))

    @admin.display(description=gettext_lazy("started"))
    def started(self, executor: Executor) -> SafeString:
        return render.ago(executor.started_at, executor.now)  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("last heartbeat"))
    def beat(self, executor: Executor) -> SafeString:
        return render.ago(executor.heartbeat, executor.now)  # type: ignore[attr-defined]
