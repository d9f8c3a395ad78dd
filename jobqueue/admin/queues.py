"""The queues of a backend: what waits and runs in each, and what people say about it."""

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
from jobqueue.engine.base import Engine
from jobqueue.inspect import audit_log
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.queries import CAP
from jobqueue.models import Queue
from jobqueue.records import QueueLatency

SHOWN = 1000  # queues


class PauseForm(forms.Form):
    reason = forms.CharField(label=gettext_lazy("Why"), max_length=255, required=False)
    until = forms.DateTimeField(
        label=gettext_lazy("Until"),
        required=False,
        help_text=gettext_lazy("It runs again by itself then; empty: when somebody resumes it."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )


class LimitForm(forms.Form):
    max_running = forms.IntegerField(
        label=gettext_lazy("Most tasks at once, in all executors together"),
        min_value=1,
        max_value=MAX_RUNNING_LIMIT,
        required=False,
        help_text=gettext_lazy("Empty: any number. To let none run, pause the queue."),
    )


FORMS: dict[str, type[forms.Form]] = {"pause": PauseForm, "limit": LimitForm}
TITLES = {"pause": gettext_lazy("Pause queues"), "limit": gettext_lazy("Limit queues")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One queue. ready, running: more than CAP where they are larger than it. oldest: how long a task has waited."""

    row: Queue
    ready: int
    running: int
    oldest: str
    is_paused: bool
    is_served: bool | None


def lines(engine: Engine) -> Iterator[Line]:
    now = engine.now()
    rows = {row.name: row for row in engine.queues.order_by("name")[:SHOWN]}
    draining = {queue.queue_name: queue for queue in engine.draining()}
    running = Counter(engine.tasks.running().order_by("executor_id").values_list("queue_name", flat=True)[: CAP + 1])
    names = api.declared_queues(engine.alias) | rows.keys() | draining.keys() | running.keys()
    for name in sorted(names)[:SHOWN]:
        row = rows.get(name) or Queue(backend=engine.alias, name=name)
        queue: QueueLatency | None = draining.get(name)
        ready = engine.tasks.ready().filter(queue_name=name).order_by("rank", "pk") if queue else None
        yield Line(
            row=row,
            ready=0 if ready is None else ready[: CAP + 1].count(),
            running=running[name],
            oldest=duration(timedelta(seconds=queue.oldest_seconds)) if queue and queue.oldest_seconds else "",
            is_paused=row.is_paused_at(now),
            is_served=None if queue is None else queue.is_served,
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
        """Show every queue, also those that nobody has said anything about and that have no row."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        aliases = api.aliases()
        backend = request.GET.get("backend", "")
        backend = backend if backend in aliases else next(iter(aliases), "")
        if request.method == "POST":
            return self._act(request, backend)
        context = {
            "lines": list(lines(engine_for(backend))) if backend else [],
            "cap": CAP,
            "backend": backend,
            "backends": aliases if len(aliases) > 1 else [],
            "may_pause": self.has_pause_permission(request),
            "title": _("Queues"),
        }
        return self._page(request, "change_list", context)

    def _act(self, request: HttpRequest, backend: str) -> HttpResponse:
        """Pause, resume or limit what was ticked; the first POST asks, the second one does it."""
        if not self.has_pause_permission(request):
            raise PermissionDenied
        what, names = request.POST.get("action", ""), [name.replace("\0", "") for name in request.POST.getlist("queue")]
        if what not in ("resume", *FORMS) or not backend or any(len(name) > 128 for name in names):
            return HttpResponseBadRequest()
        if not names:
            messages.warning(request, _("No queue was chosen."))
        elif what == "resume":
            self._resume(request, names, backend)
        else:
            is_confirmed = "confirmed" in request.POST
            form = FORMS[what](request.POST if is_confirmed else None)
            if not (is_confirmed and form.is_valid() and self._perform(request, what, names, backend, form)):
                context = {"form": form, "action": what, "names": names, "title": TITLES[what]}
                return self._page(request, "ask", context)
        return HttpResponseRedirect(request.get_full_path())

    def _perform(self, request: HttpRequest, what: str, names: Sequence[str], backend: str, form: forms.Form) -> bool:
        """Pause or limit queues; returns whether what the form says could be done."""
        given = form.cleaned_data
        try:
            for name in names:
                if what == "limit":
                    api.limit(name, given["max_running"], backend=backend)
                else:
                    by = request.user.get_username()[:150]
                    api.pause(name, by=by, reason=given["reason"], until=given["until"], backend=backend)
        except ValueError as error:
            form.add_error(None, str(error))
            return False
        if what == "limit":
            most = given["max_running"]
            said = _("Limited to %(most)d at once.") % {"most": most} if most else _("Any number may run at once.")
        else:
            said = _("Paused: %(reason)s") % {"reason": given["reason"]} if given["reason"] else _("Paused.")
        self._log(request, names, backend, said)
        return True

    def _resume(self, request: HttpRequest, names: Sequence[str], backend: str) -> None:
        for name in names:
            api.resume(name, backend=backend)
        self._log(request, names, backend, _("Resumed."))

    def _log(self, request: HttpRequest, names: Sequence[str], backend: str, what: str) -> None:
        audit_log.write(request, engine_for(backend).queues.filter(name__in=names), what)
        # Django's page capitalizes the first word, so the queue's name must not come first.
        said = ngettext("Queue %(names)s: %(what)s", "Queues %(names)s: %(what)s", len(names))
        messages.success(request, said % {"names": ", ".join(names), "what": what})

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/jobqueue/queue/{template}.html", {**common, **context})
