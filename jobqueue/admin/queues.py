"""The queues of a backend: ready and running tasks, pauses and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import api
from jobqueue.admin import render
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.api.queues import MAX_RUNNING_LIMIT
from jobqueue.engine import engine_for
from jobqueue.engine.engine import Engine
from jobqueue.inspect import audit_log
from jobqueue.inspect.formatting import describe_pause, duration
from jobqueue.inspect.queries import CAP, Count, capped, count
from jobqueue.models import Queue
from jobqueue.records import QueueLatency

SHOWN = 1000  # queues


class PauseForm(forms.Form):
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=255, required=False)
    until = forms.DateTimeField(
        label=gettext_lazy("Resume at"),
        required=False,
        help_text=gettext_lazy("The queue resumes automatically then. Leave empty to resume it by hand."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )


class LimitForm(forms.Form):
    max_running = forms.IntegerField(
        label=gettext_lazy("Maximum running tasks (across all executors)"),
        min_value=1,
        max_value=MAX_RUNNING_LIMIT,
        required=False,
        help_text=gettext_lazy("Leave empty for no limit. To run no tasks, pause the queue."),
    )


FORMS: dict[str, type[forms.Form]] = {"pause": PauseForm, "limit": LimitForm}
TITLES = {"pause": gettext_lazy("Pause queues"), "limit": gettext_lazy("Limit queues")}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """One queue. latency: how long its oldest READY task has waited. pause: its description; empty if active."""

    row: Queue
    ready: Count
    running: Count
    latency: str
    pause: str
    has_executors: bool


def read_lines(engine: Engine) -> Iterator[QueueLine]:
    now = engine.now()
    rows = {row.name: row for row in engine.queues.order_by("name")[:SHOWN]}
    latencies = {queue.queue_name: queue for queue in engine.queue_latency()}
    running = Counter(engine.tasks.running().order_by("executor_id").values_list("queue_name", flat=True)[: CAP + 1])
    names = api.declared_queues(engine.alias) | rows.keys() | latencies.keys() | running.keys()
    for name in sorted(names)[:SHOWN]:
        row = rows.get(name) or Queue(backend=engine.alias, name=name)
        found: QueueLatency | None = latencies.get(name)
        ready = engine.tasks.ready().filter(queue_name=name).order_by("pool", "rank", "pk")
        yield QueueLine(
            row=row,
            ready=Count() if found is None else count(ready),
            running=capped(running[name]),
            latency=duration(timedelta(seconds=found.latency_seconds)) if found and found.latency_seconds else "–",
            pause=describe_pause(row) if row.is_paused_at(now) else "",
            has_executors=found is None or found.is_served is not False,
        )


class QueueAdmin(ReadOnlyAdmin[Queue]):
    actions = None
    fields = ("name", "backend", "paused", "paused_by", "pause_reason", "resumes", "max_running")
    readonly_fields = fields

    @admin.display(description=gettext_lazy("paused since"))
    def paused(self, queue: Queue) -> SafeString:
        return render.moment(queue.paused_at)

    @admin.display(description=gettext_lazy("resumes"))
    def resumes(self, queue: Queue) -> SafeString:
        return render.moment(queue.resume_at)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("jobqueue.pause_queue"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show every queue in use, also those without a row."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        aliases = api.aliases()
        backend = request.GET.get("backend", "")
        backend = backend if backend in aliases else next(iter(aliases), "")
        if request.method == "POST":
            return self._act(request, backend)
        context = {
            "lines": list(read_lines(engine_for(backend))) if backend else [],
            "backend": backend,
            "backends": aliases if len(aliases) > 1 else [],
            "now": engine_for(backend).now() if backend else None,
            "may_pause": self.has_pause_permission(request),
            "title": _("Queues"),
        }
        return self._page(request, "change_list", context)

    def _act(self, request: HttpRequest, backend: str) -> HttpResponse:
        """Pause, resume or limit the selected queues. For pause and limit, the first POST asks."""
        if not self.has_pause_permission(request):
            raise PermissionDenied
        action = request.POST.get("action", "")
        names = [name.replace("\0", "") for name in request.POST.getlist("queue")]
        if action not in ("resume", *FORMS) or not backend or any(len(name) > 128 for name in names):
            return HttpResponseBadRequest()
        if not names:
            messages.warning(request, _("Select at least one queue."))
        elif action == "resume":
            self._resume(request, names, backend)
        else:
            is_confirmed = "confirmed" in request.POST
            form = FORMS[action](request.POST if is_confirmed else None)
            if not (is_confirmed and form.is_valid() and self._perform(request, action, names, backend, form)):
                context = {"form": form, "action": action, "names": names, "title": TITLES[action]}
                return self._page(request, "ask", context)
        return HttpResponseRedirect(request.get_full_path())

    def _perform(self, request: HttpRequest, action: str, names: Sequence[str], backend: str, form: forms.Form) -> bool:
        """Pause or limit queues. Return False, with an error in the form, if the values are refused."""
        values = form.cleaned_data
        try:
            for name in names:
                if action == "limit":
                    api.limit(name, values["max_running"], backend=backend)
                else:
                    by = request.user.get_username()[:150]
                    api.pause(name, by=by, reason=values["reason"], until=values["until"], backend=backend)
        except ValueError as error:
            form.add_error(None, str(error))
            return False
        if action == "limit":
            limit = values["max_running"]
            text = _("Limited to %(limit)d running tasks.") % {"limit": limit} if limit else _("Limit removed.")
        else:
            text = _("Paused: %(reason)s") % {"reason": values["reason"]} if values["reason"] else _("Paused.")
        self._log(request, names, backend, text)
        return True

    def _resume(self, request: HttpRequest, names: Sequence[str], backend: str) -> None:
        for name in names:
            api.resume(name, backend=backend)
        self._log(request, names, backend, _("Resumed."))

    def _log(self, request: HttpRequest, names: Sequence[str], backend: str, message: str) -> None:
        audit_log.write(request, engine_for(backend).queues.filter(name__in=names), message)
        # Django's page capitalizes the first word, so the queue's name must not come first.
        text = ngettext("Queue %(names)s: %(message)s", "Queues %(names)s: %(message)s", len(names))
        messages.success(request, text % {"names": ", ".join(names), "message": message})

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/jobqueue/queue/{template}.html", {**common, **context})
