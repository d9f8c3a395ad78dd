"""The queues of a backend: ready and running tasks, pauses and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import api
from jobqueue.admin.base import PauseFields, ReadOnlyAdmin, permission, requested_backend
from jobqueue.admin.charts import duration_text, per_minute
from jobqueue.admin.summaries import SummaryPage
from jobqueue.api.queues import MAX_RUNNING_LIMIT
from jobqueue.engine import engine_for
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.overview.periods import Counts, read_recent
from jobqueue.operations.overview.stats import QueueStats, read_stats
from jobqueue.values.counters import Scope

RECENT_MINUTES = 10


# Each form asks about a change, performs it for a queue (or raises ValueError), and describes it for the history.
class PauseForm(PauseFields):
    title = gettext_lazy("Pause queues")

    def perform(self, name: str, backend: str, user: str) -> None:
        api.pause(name, by=user[:150], **self.cleaned_data, backend=backend)


class LimitForm(forms.Form):
    title = gettext_lazy("Limit queues")
    max_running = forms.IntegerField(
        label=gettext_lazy("Maximum running tasks (across all executors)"),
        min_value=1,
        max_value=MAX_RUNNING_LIMIT,
        required=False,
        help_text=gettext_lazy("Leave empty for no limit. To run no tasks, pause the queue."),
    )

    def perform(self, name: str, backend: str, user: str) -> None:
        api.limit_queue(name, self.cleaned_data["max_running"], backend=backend)

    def describe(self) -> str:
        limit = self.cleaned_data["max_running"]
        return _("Limited to %(limit)d running tasks.") % {"limit": limit} if limit else _("Limit removed.")


class ResumeForm(forms.Form):  # asks for nothing, so it is performed at once
    title = gettext_lazy("Resume queues")

    def perform(self, name: str, backend: str, user: str) -> None:
        api.resume(name, backend=backend)

    def describe(self) -> str:
        return _("Resumed.")


FORMS: dict[str, type[PauseForm | LimitForm | ResumeForm]] = {
    "pause": PauseForm,
    "limit": LimitForm,
    "resume": ResumeForm,
}


@dataclass(frozen=True, slots=True)
class Line:
    """A queue in the list, with figures of the last minutes."""

    queue: QueueStats  # as the overview reads it
    rate: str  # attempts that ended a minute
    wait: str  # the p95 of their wait


def read_lines(backend: str) -> list[Line]:
    engine = engine_for(backend)
    recent = read_recent(engine, Scope.QUEUE, RECENT_MINUTES)
    return [
        Line(queue, per_minute(counts.attempts / RECENT_MINUTES), duration_text(counts.wait(0.95)))
        for queue in read_stats(engine).queues
        for counts in [recent.get(queue.name, Counts())]
    ]


class QueueAdmin(ReadOnlyAdmin):
    actions = None
    fields = ("name", "backend", "paused_at", "paused_by", "pause_reason", "resume_at", "max_running")
    readonly_fields = fields
    has_pause_permission = permission("pause_queue")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pages = [SummaryPage(self, Scope.QUEUE)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show every queue in use, also those without a row."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        backend, offered = requested_backend(request)
        if request.method == "POST":
            return self._act(request, backend)
        return self.page(
            request,
            "queue/change_list",
            title=_("Queues"),
            lines=read_lines(backend) if backend else [],
            minutes=RECENT_MINUTES,
            may_view_task=request.user.has_perm("jobqueue.view_task"),
            backend=backend,
            backends=offered,
            now=engine_for(backend).db.now() if backend else None,
            may_pause=self.has_pause_permission(request),
        )

    def _act(self, request: HttpRequest, backend: str) -> HttpResponse:
        """Change the selected queues. If the form has fields, the first POST asks."""
        if not self.has_pause_permission(request):
            raise PermissionDenied
        action = request.POST.get("action", "")
        names = [name.replace("\0", "") for name in request.POST.getlist("queue")]
        if row := request.POST.get("row"):  # a button in the row of a queue
            action, _colon, name = row.partition(":")
            names = [name.replace("\0", "")]
        if action not in FORMS or not backend or any(len(name) > 128 for name in names):
            return HttpResponseBadRequest()
        if not names:
            messages.warning(request, _("Select at least one queue."))
            return HttpResponseRedirect(request.get_full_path())
        kind = FORMS[action]
        form = kind(request.POST if "confirmed" in request.POST or not kind.base_fields else None)
        if form.is_valid():
            try:
                with engine_for(backend).db.transaction():
                    for name in names:
                        form.perform(name, backend, request.user.get_username())
            except ValueError as error:
                form.add_error(None, str(error))
            except OperationalError:  # lock timeout
                text = _("Nothing was changed: another transaction has locked a queue. Try again in a moment.")
                form.add_error(None, text)
            else:
                self._log(request, names, backend, form.describe())
                return HttpResponseRedirect(request.get_full_path())
        hidden = [("action", action), ("confirmed", 1), *(("queue", name) for name in names)]
        return self.confirm(request, hidden, title=form.title, names=names, form=form, button=form.title)

    def _log(self, request: HttpRequest, names: Sequence[str], backend: str, message: str) -> None:
        audit_log.write(request, engine_for(backend).db.queues.filter(name__in=names), message)
        # Django's page capitalizes the first word, so the queue's name must not come first.
        text = ngettext("Queue %(names)s: %(message)s", "Queues %(names)s: %(message)s", len(names))
        messages.success(request, text % {"names": ", ".join(names), "message": message})
